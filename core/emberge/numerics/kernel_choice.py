"""The choice between compiled kernels and plain torch; loads no NumPy."""

from __future__ import annotations

import os

SWITCH = "EMBERGE_KERNELS"
"""Environment variable: `always` uses kernels for small merges too, `never` uses none."""

# Input numbers below which a merge takes little time either way.
_WORTHWHILE_NUMBERS = 1 << 10


def worth_kernels(numbers: int) -> bool:
    """Return whether a merge of this many input numbers should use kernels, if there are any."""
    setting = os.environ.get(SWITCH, "")
    return setting == "always" or (setting != "never" and numbers >= _WORTHWHILE_NUMBERS)


def kernels_line(numbers: int) -> str:
    """Return a line for `check` that says whether a merge of this size uses compiled kernels, and why."""
    if os.environ.get(SWITCH, "") == "never":
        return f"plain torch, as {SWITCH}=never asks for"
    if not worth_kernels(numbers):
        return "plain torch, as there is little to merge"
    from emberge.numerics.row_kernels import KernelsMissingError, load_library

    try:
        return f"compiled in C ({load_library().processor})"
    except KernelsMissingError as error:
        return f"plain torch, which is slower, as {error}"
