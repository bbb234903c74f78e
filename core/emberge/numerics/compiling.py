"""The choice between compiled kernels and plain torch, and the folder in which compiled code is kept."""

from __future__ import annotations

import functools
import importlib.util
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SWITCH = "EMBERGE_KERNELS"
"""Environment variable: `always` uses kernels for small merges too, `never` uses none."""

# Input numbers below which loading the kernels takes longer than what they save.
_WORTHWHILE_NUMBERS = 1 << 28


def worth_compiling(numbers: int) -> bool:
    """Return whether a merge of this many input numbers should use kernels, if they are installed."""
    setting = os.environ.get(SWITCH, "")
    return setting == "always" or (setting != "never" and numbers >= _WORTHWHILE_NUMBERS)


def kernels_line(numbers: int) -> str:
    """Return a line for `check` that says whether a merge of this size uses compiled kernels, and why."""
    if os.environ.get(SWITCH, "") == "never":
        return f"plain torch, as {SWITCH}=never asks for"
    if not worth_compiling(numbers):
        return "plain torch, as there is little to merge"
    if importlib.util.find_spec("numba") is None:
        return "plain torch; faster with numba: pip install 'emberge[kernels]'"
    storage = (
        "kept in " + str(kernel_cache_folder())
        if is_cache_usable()
        else f"anew, as {kernel_cache_folder()} cannot be written by us alone"
    )
    return f"compiled by numba, {storage}"


def kernel_cache_folder() -> Path:
    """Return the user's cache folder for compiled code."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) if folder else Path(cache) / "emberge" / "kernels"


@functools.cache
def is_cache_usable() -> bool:
    """Return whether compiled code can be kept in the user's cache folder.

    Stored code is executed later. So a folder that belongs to another user, or that everybody may write to,
    is not used.
    """
    try:
        kernel_cache_folder().mkdir(0o755, parents=True, exist_ok=True)
        status = kernel_cache_folder().stat()
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & stat.S_IWOTH:
            return False
        with tempfile.TemporaryFile(dir=kernel_cache_folder()):
            return True
    except OSError:
        return False


@contextmanager
def use_kernel_cache(config: Any) -> Iterator[bool]:
    """Point numba to the user's cache folder, and yield whether compiled code can be kept there."""
    cache_before = config.CACHE_DIR
    config.CACHE_DIR = str(kernel_cache_folder())
    try:
        yield is_cache_usable()
    finally:
        config.CACHE_DIR = cache_before
