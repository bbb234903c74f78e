"""Child processes: those that end with their parent, steps in processes of their own, ranks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
