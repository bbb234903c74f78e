"""Statistics of models (Fisher information, Gram matrices, norms of changes), which merges read."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
