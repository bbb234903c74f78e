"""Files on disk: writing and publishing at once or not at all, locks, free space, hashes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
