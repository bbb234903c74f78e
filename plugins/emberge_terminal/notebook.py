"""Output of a notebook's cell that changes in place; a cell has no cursor that escape codes could move."""

from __future__ import annotations

import importlib
import sys
from typing import Any


class CellText:
    """A text below the running cell, which every `show` replaces."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Show the text in place of the one before."""
        display: Any = importlib.import_module("IPython.display")
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = display.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def runs_in_notebook() -> bool:
    """Return whether this process is a notebook's kernel; never imports IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
