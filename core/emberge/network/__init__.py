"""The network: which addresses may be asked, and connections that are checked, bounded and can be ended."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
