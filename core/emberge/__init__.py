"""emberge: the merge engine for embedding models.

Authors of components import from here; authors of steps and scripts also import from the subpackages. A room
(a subpackage such as `emberge.merging`) lists its public names in its `__init__.pyi`, each with the module
that defines it. Python imports that module when the name is first used, so importing emberge loads no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
