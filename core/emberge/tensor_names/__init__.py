"""Names of tensors: of architectures and their aliases, of layers, tied copies, and heads for tasks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
