"""emberge: the merge engine for embedding models.

Authors of components import from here, authors of steps and scripts from `emberge.engine` as well. Each
name is written once, in `__init__.pyi`, with the module that defines it; Python imports that module when the
name is first used, so importing emberge loads no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
