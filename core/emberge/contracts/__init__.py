"""The nouns: what plugins implement and runners call. Nothing here loads torch when it is imported."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
