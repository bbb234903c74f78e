"""Files of images and clips: their facts and content, and the folder where bytes of rows are kept."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
