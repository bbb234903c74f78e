"""Import of what steps need and takes long, such as torch, while the inputs are hashed.

Hashing leaves the interpreter free, and importing takes one core: together they last as long as the longer.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

from emberge.heap import pause_collections


def import_modules(names: Iterable[str]) -> None:
    """Import modules by name; one that cannot be imported is left to whoever needs it."""
    missing = [name for name in names if name not in sys.modules]
    if not missing:
        return
    with pause_collections(freeze=True):
        for name in missing:
            with suppress(Exception):
                importlib.import_module(name)


class ModuleLoader:
    """A thread that imports modules, once it was started."""

    def __init__(self, names: Iterable[str]) -> None:
        self._thread = threading.Thread(
            target=import_modules, args=(tuple(names),), name="import", daemon=True
        )
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin, unless that was done before; from any thread."""
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()

    def wait(self) -> None:
        """Wait until all modules are there, if the thread was started."""
        if self._thread.ident is not None:
            self._thread.join()
