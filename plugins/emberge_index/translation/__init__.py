"""Maps between the vectors of two models, fitted and measured: the steps `translate` and `bridge`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
