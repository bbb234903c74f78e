"""The choice between compiled kernels and plain torch; loads no NumPy."""

from __future__ import annotations

import os

SWITCH = "EMBERGE_KERNELS"
"""Environment variable: `never` merges by plain torch."""


def kernels_allowed() -> bool:
    """Return whether a merge may use compiled kernels, if there are any."""
    return os.environ.get(SWITCH, "") != "never"


def kernels_line() -> str:
    """Return a line for `check` that says whether merges use compiled kernels, and why."""
    if not kernels_allowed():
        return f"plain torch, as {SWITCH}=never asks for"
    from emberge.numerics.row_kernels import KernelsMissingError, load_library

    try:
        return f"compiled in C ({load_library().processor})"
    except KernelsMissingError as error:
        return f"plain torch, which is slower, as {error}"
