"""The network: checks of addresses, and bounded connections that can be interrupted."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
