"""The choice between compiled kernels and plain torch: is numba here, is the merge large, do both agree."""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["cached_in", "can_keep", "kernels", "kernels_line", "worth_compiling"]

SWITCH = "EMBERGE_KERNELS"
"""Environment variable: `always` takes kernels for small merges too, `never` for none."""

# Input numbers below which loading the kernels takes longer than what they save.
_MANY = 1 << 28


def worth_compiling(numbers: int) -> bool:
    """Return whether a merge of so many input numbers is to use kernels, if there are any."""
    wish = os.environ.get(SWITCH, "")
    return wish == "always" or (wish != "never" and numbers >= _MANY)


def kernels_line(numbers: int) -> str:
    """Return for `check` the path that a merge of so many input numbers takes on a CPU, and why."""
    if os.environ.get(SWITCH, "") == "never":
        return f"plain torch, as {SWITCH}=never asks for"
    if not worth_compiling(numbers):
        return "plain torch, as there is little to merge"
    if importlib.util.find_spec("numba") is None:
        return "plain torch; faster with numba: pip install 'emberge[fast]'"
    place = "kept in " + str(_folder()) if can_keep() else f"anew, as {_folder()} cannot be written"
    return f"compiled by numba, {place}"


@functools.cache
def kernels() -> Any | None:
    """Return the module of kernels, compiled and compared with torch; None without numba, or if they differ.

    A difference, and a numba that cannot be imported, are warned about once.
    """
    if importlib.util.find_spec("numba") is None:
        return None
    try:
        from emberge.numerics import row_kernels
        from emberge.numerics.self_test import first_difference

        if not can_keep():
            _warn(f"{_folder()} cannot be written, so kernels are compiled for this run alone")
        different = first_difference(row_kernels)
    except Exception as error:  # whatever a broken compiler raises
        _warn(f"numba does not work here ({error}); merging by plain torch, which is slower")
        return None
    if different:
        _warn(
            f"the compiled kernel '{different}' gives other bytes than torch on this machine; "
            "merging by plain torch, which is slower"
        )
        return None
    return row_kernels


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)


def _folder() -> Path:
    """Return the user's cache folder for compiled code."""
    own = os.environ.get("NUMBA_CACHE_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(cache) / "emberge" / "kernels"


@functools.cache
def can_keep() -> bool:
    """Return whether compiled code can be kept in the user's cache folder."""
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=_folder()):
            return True
    except OSError:
        return False


@contextmanager
def cached_in(config: Any) -> Iterator[bool]:
    """Point numba to the user's cache folder, and yield whether compiled code can be kept there."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_folder())
    try:
        yield can_keep()
    finally:
        config.CACHE_DIR = before
