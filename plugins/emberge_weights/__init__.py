"""Weights of merges, found from the embeddings of the members before anything is merged."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
