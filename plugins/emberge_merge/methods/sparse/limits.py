"""Limits of magnitudes: what lies below is undone, and of equal magnitudes the first are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch
    from emberge.numerics import Words
    from torch import Tensor

_BEYOND_ALL_ROWS = 1 << 60
_UNREACHED_PATTERN = (1 << 63) - 2


class Limit(NamedTuple):
    """A limit as a bit pattern: larger magnitudes are kept, and of equal magnitudes the first in the tensor.

    Equal magnitudes are kept in all rows that begin before element `row` of the tensor; from there on,
    `quota` of them are kept.
    """

    pattern: int
    row: int = _BEYOND_ALL_ROWS
    quota: int = 0

    @classmethod
    def of_all(cls) -> Limit:
        """Return the limit that all magnitudes reach."""
        return cls(0)

    @classmethod
    def of_nothing(cls) -> Limit:
        """Return the limit that no magnitude reaches, not even infinity or NaN."""
        return cls(_UNREACHED_PATTERN, -1)

    def words(self) -> Words:
        """Return the limit as the kernels read it."""
        # No float32 has a larger pattern than 2³¹ - 1, and the kernels look for one more than the limit's.
        return min(self.pattern, (1 << 31) - 2), self.row, self.quota

    def keep(self, values: Tensor, into: Tensor, start: int) -> None:
        """Write the flat values that reach the limit, and zeros for other values; `into` may be `values`.

        `start` is the position of the first value.
        """
        if self.pattern == _UNREACHED_PATTERN:
            into.zero_()
            return
        split = self._count_below_last_tie(values, start)
        if split:
            _keep_from(values[:split], into[:split], self.pattern)
        if split < values.numel():
            _keep_from(values[split:], into[split:], self.pattern + 1)

    def _count_below_last_tie(self, values: Tensor, start: int) -> int:
        """Return the number of a block's values up to and including the last kept tie."""
        at = max(0, min(self.row - start, values.numel()))
        if self.row < start or at == values.numel():
            return at
        ties = np.flatnonzero(view_bit_patterns(values[at:]) == self.pattern)
        return at + int(ties[self.quota - 1]) + 1


@dataclass(frozen=True, slots=True)
class KeepLargest:
    """A change that keeps each model's values at or above its limit or, with `undo`, those below it."""

    limits: Sequence[Limit]
    undo: bool = False

    @property
    def kernel(self) -> str:
        return "undo" if self.undo else "keep"

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        from emberge.numerics import take_tensor_like

        flat = deltas.view(len(deltas), -1)
        largest = take_tensor_like(flat[0]) if self.undo else None
        for limit, values in zip(self.limits, flat, strict=True):
            limit.keep(values, values if largest is None else largest, start)
            if largest is not None:
                values.sub_(largest)
        return deltas

    def list_kernel_arguments(self) -> list[tuple[float, Words]]:
        return [(0.0, limit.words()) for limit in self.limits]


def view_bit_patterns(values: Tensor | np.ndarray) -> np.ndarray:
    """Return the bit patterns of magnitudes, as integers that sort in the same order."""
    numbers = values if isinstance(values, np.ndarray) else values.cpu().numpy()
    magnitudes: np.ndarray = np.abs(numbers)
    return magnitudes.view(np.int32 if magnitudes.itemsize == 4 else np.int64)


def _read_magnitude(pattern: int, dtype: torch.dtype) -> float:
    """Return the magnitude whose bit pattern is `pattern`, as a number of a dtype."""
    whole, real = (np.int32, np.float32) if dtype.itemsize == 4 else (np.int64, np.float64)
    return float(whole(pattern).view(real))


def _keep_from(values: Tensor, into: Tensor, least: int) -> None:
    """Copy the values whose magnitude's bit pattern is at least `least`."""
    if least == 0:
        into.copy_(values)
    else:
        import torch

        just_below = _read_magnitude(least - 1, values.dtype)
        torch.ops.aten.hardshrink.out(values, just_below, out=into)
