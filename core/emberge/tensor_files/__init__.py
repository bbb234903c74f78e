"""Weights on disk: headers, readers, writers, and tensors that are computed while they are read."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
