"""Mixtures of experts: upcycled, trained with balanced routers, and seen (arXiv:2502.07972)."""
