"""BOOM: bagging-based model merging (arXiv:2602.05787)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
