"""Truncation of a change to its largest singular values; loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Truncation"]

# Squares of singular values below this share of the largest are rounding of the matrix itself.
_NOISE = 1e-14


@dataclass(frozen=True, slots=True)
class Truncation:
    """A limit: at most `rank` singular values, and no more than have `energy` of the squared norm."""

    rank: int | None = None
    energy: float | None = None

    def of(self, squares: Tensor) -> int:
        """Return the number of squared singular values, largest first, that are kept; at least one."""
        count = int((squares > _NOISE * squares[0]).sum())
        if self.energy is not None:
            reached = squares.cumsum(0) >= self.energy * squares.sum() * (1 - 1e-12)
            count = min(count, int((~reached).sum()) + 1)
        return max(1, min(count, self.rank or count))
