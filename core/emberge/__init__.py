"""emberge: the merge engine for embedding models.

Authors of components import from here; authors of steps and scripts also import from the subpackages. A room
(a subpackage such as `emberge.merging`) lists its public names in its `__init__.pyi`, each with the module
that defines it. Python imports that module when the name is first used, so importing emberge loads no torch.
Functions that plugins add (`emberge.adapt`) are found by the hook `register_functions`.
"""

import importlib.util
from typing import Any

import lazy_loader

_load_name, _list_names, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Return a public name of emberge, or a function that a plugin adds."""
    if name in __all__:
        return _load_name(name)
    # Python asks for a module's name here before it imports the module, also while plugins load.
    if name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}") is not None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from emberge.plugins import find_function

    return find_function(name)


def __dir__() -> list[str]:
    """Return the names of emberge and of plugins' functions, which notebooks complete."""
    from emberge.plugins import list_functions

    return sorted({*_list_names(), *list_functions()})


__version__ = "0.1.0"
