"""The compiled kernels, given away after a small test on this machine; loads no torch."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np

from emberge.numerics import row_kernels
from emberge.numerics.evaluations import KernelEvaluation
from emberge.numerics.stored_rows import ALIGNED, Place, StoredRows

# More than a chunk of the kernels, and no multiple of a vector.
_TESTED_NUMBERS = 2048 + 37


@functools.cache
def kernels() -> Any | None:
    """Return the module of compiled kernels; None if there are none, or if a small sum by them is wrong.

    If kernels exist and cannot be used, a warning is logged.
    """
    try:
        row_kernels.load_library()
        if _is_exact(row_kernels):
            return row_kernels
        _warn("the compiled kernels add up wrongly on this machine")
    except row_kernels.KernelsUnusableError as error:
        _warn(str(error))
    except row_kernels.KernelsMissingError:
        pass
    return None


def _is_exact(compiled: Any) -> bool:
    """Return whether kernels add changes of two models to a base as NumPy does; all sums are exact."""
    size = _TESTED_NUMBERS
    numbers = (np.arange(3 * size, dtype=np.float32).reshape(3, size) % 251 - 125) / 8
    step = -(-2 * size // ALIGNED) * ALIGNED
    memory: np.ndarray = np.zeros((3, step), np.uint8)
    # bfloat16 is the upper half of float32.
    memory[:, : 2 * size] = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    first, second, base = (Place("bfloat16", m * step, m) for m in range(3))
    models, shape = [first, second], (size,)
    rows = StoredRows.of(
        memory.reshape(-1), models, base, shape, compiled, is_checked=True, without_torch=True
    )
    evaluation = KernelEvaluation.of(rows, (), None, 0, subtract=True)
    found = evaluation.combine([0.5, 0.25], add_base=True)
    return np.array_equal(found, 0.5 * numbers[0] + 0.25 * numbers[1] + 0.25 * numbers[2])


def _warn(reason: str) -> None:
    warnings.warn(
        f"{reason}; merging by plain torch, which is slower", RuntimeWarning, stacklevel=3
    )
