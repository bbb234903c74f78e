"""Files on disk: complete or absent after a kill, locks, free space, and safe reading of untrusted files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
