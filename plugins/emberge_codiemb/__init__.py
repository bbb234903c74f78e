"""CoDiEmb: one encoder for retrieval and similarity (arXiv:2508.11442)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
