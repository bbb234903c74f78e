"""Ready steps on a Ray cluster: the only plugin that imports Ray."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
