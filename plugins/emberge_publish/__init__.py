"""Publishing of models on a hub: what is uploaded, under which licence, and with what known of its origin."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
