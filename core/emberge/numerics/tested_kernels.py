"""The compiled kernels, once they were compared with torch."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from typing import Any

from emberge.numerics.compiling import can_keep, kept_in
from emberge.numerics.self_test import first_difference

__all__ = ["kernels"]


@functools.cache
def kernels() -> Any | None:
    """Return the module of kernels, compiled and compared with torch; None without numba, or if they differ.

    A difference, and a numba that cannot be imported, are warned about once.
    """
    if importlib.util.find_spec("numba") is None:
        return None
    try:
        from emberge.numerics import row_kernels

        if not can_keep():
            _warn(f"{kept_in()} cannot be written, so kernels are compiled for this run alone")
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
