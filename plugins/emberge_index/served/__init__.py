"""Comparison of a server's vectors, or of stored ones, with a model's own, and the causes of differences."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
