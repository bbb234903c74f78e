"""The command of every Python process that is started here: this interpreter, on a safe path."""

from __future__ import annotations

import os
import sys


def python_command(*words: str) -> list[str]:
    """Return the command that runs this interpreter with the words, such as `-m emberge run`.

    `-P` keeps the current folder off the path: `python -m` and `python -c` would import a file that somebody
    has left there, such as `json.py`, in the place of the library's. What the process starts keeps to it too.
    """
    return [sys.executable, "-P", *words]


def safe_paths() -> list[str]:
    """Return the folders that this process imports from, but for the current one."""
    here = os.path.realpath(os.curdir)
    return [path for path in sys.path if path and os.path.realpath(path) != here]
