"""Spaces of embeddings: a model's passport, and whether vectors of two models may be mixed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
