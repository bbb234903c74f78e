"""Publishing of models on a hub: choice of files, their card, and the upload."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
