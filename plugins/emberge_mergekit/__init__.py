"""mergekit's configs as recipes, and its own merge methods as a strategy; the only importer of mergekit."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
