"""Mixtures of experts: rotary positions for XLM-R, upcycling, balanced routers (arXiv:2502.07972)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
