"""The compiled kernels, given away after they agreed with torch once on this machine; loads no torch."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from emberge.numerics import row_kernels
from emberge.numerics.native import build


@functools.cache
def kernels() -> Any | None:
    """Return the module of compiled kernels, compared with torch; None if there are none, or if they differ.

    They are compared once for each version and processor, if a file that records this can be kept; else in
    every process. If kernels differ, or cannot be used, a warning is logged.
    """
    try:
        mark = _mark_path(row_kernels.load_library())
        if mark is not None and mark.exists():
            return row_kernels
        from emberge.numerics.compare_kernels import first_difference

        different = first_difference(row_kernels)
    except row_kernels.KernelsUnusableError as error:
        _warn(f"{error}; merging by plain torch, which is slower")
        return None
    except row_kernels.KernelsMissingError:
        return None
    if different:
        _warn(
            f"the compiled kernel '{different}' gives other bytes than torch on this machine; "
            "merging by plain torch, which is slower"
        )
        return None
    if mark is not None:
        with contextlib.suppress(OSError):
            mark.touch()
    return row_kernels


def _mark_path(library: row_kernels.KernelLibrary) -> Path | None:
    """Return the path of the file that records that these kernels agreed with torch on this processor.

    None if the user's cache folder cannot be written.
    """
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(cache) / "emberge" / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # also of a user without a home
        return None
    if not os.access(folder, os.W_OK):
        return None
    parts = (library.level, version("torch"), version("numpy"))
    content = build.LIBRARY.read_bytes() + Path(row_kernels.__file__).read_bytes()
    name = hashlib.blake2b(content + "\0".join(parts).encode(), digest_size=8).hexdigest()
    return folder / f"tested-{name}"


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)
