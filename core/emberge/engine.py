"""The engine for authors of steps and scripts: merging, training, model folders, data, scores and runs.

Each name is written once, in `engine.pyi`, with the module that defines it; Python imports that module when
the name is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("emberge", __file__)
