"""Backbones of rerankers, and of sparse and multi-vector encoders."""
