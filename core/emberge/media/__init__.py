"""Image and audio files: reading them, and the folder where a data set's media are stored."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
