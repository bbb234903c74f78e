"""Texts of like length together: chunks of a batch under a token budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["chunks", "padded_tokens"]


def chunks(lengths: Sequence[int] | NDArray[np.int64], budget: int) -> list[NDArray[np.int64]]:
    """Cut texts into chunks whose padded size, rows times longest, stays within `budget` tokens.

    Longest first, so that a device meets its largest chunk at once; ties keep their order. A text longer
    than the budget is a chunk of its own.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    found: list[NDArray[np.int64]] = []
    start = 0
    while start < len(order):
        longest = max(1, int(sizes[order[start]]))
        rows = max(1, budget // longest)
        found.append(order[start : start + rows])
        start += rows
    return found


def padded_tokens(lengths: NDArray[np.int64], pieces: Sequence[NDArray[np.int64]]) -> int:
    """Tokens that the encoder computes for these chunks, padding included."""
    return sum(len(piece) * int(lengths[piece].max()) for piece in pieces if len(piece))
