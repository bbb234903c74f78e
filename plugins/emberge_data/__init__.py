"""Training data: readers of its files, and steps that filter, mine and score it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
