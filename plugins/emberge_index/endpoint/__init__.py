"""Servers of embeddings, checked beside a model: whether their vectors are the model's, and why not."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
