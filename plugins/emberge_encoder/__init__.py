"""Models of transformers and sentence-transformers as encoders; random models to train from nothing."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
