"""Sums in float64 in 64 lanes: lane l adds elements l, l + 64, …, and then the lanes are added in order.

The same sequence everywhere, which a library's own sums are not, so a sum has the same bits on every machine.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["LANES", "gram", "pairs_of", "square_of", "sums"]

LANES = 64
# Elements of a row that are worked on at once, so that float64 copies of all rows stay in a cache.
_PART = 1 << 13


def sums(rows: Tensor, *, squares: bool) -> Tensor:
    """Return the sums of magnitudes or squares of [n, elements], float64 [n]."""
    found = []
    for row in rows:
        wide = row.cpu().numpy().astype(np.float64)
        found.append(_sum(np.square(wide, out=wide) if squares else np.abs(wide, out=wide)))
    return torch.tensor(found, dtype=torch.float64)


def gram(rows: Tensor, *, near: bool = False) -> Tensor:
    """Return the inner products of [n, elements], float64 [n, n].

    With `near` those of the first row and the others' differences to it, rounded to their own type.
    """
    count, numbers = len(rows), rows.cpu().numpy()
    lanes = np.zeros((pairs_of(count), 1, LANES))
    for first in range(0, rows.shape[1], _PART):
        part = numbers[:, first : first + _PART]
        if near:
            part = np.concatenate([part[:1], part[1:] - part[:1]])
        wide = part.astype(np.float64)
        room = np.empty((-(-wide.shape[1] // LANES) + 1, LANES))
        pair = 0
        for i in range(count):
            for j in range(i + 1):
                # What was added before comes first, so that parts do not show in the order.
                room[0] = lanes[pair]
                room[-1] = 0
                np.multiply(wide[i], wide[j], out=room[1:].reshape(-1)[: wide.shape[1]])
                np.add.reduce(room, axis=0, out=lanes[pair, 0])
                pair += 1
    return square_of(lanes[:, 0].cumsum(1)[:, -1], count)


def _sum(values: np.ndarray) -> float:
    whole = len(values) // LANES * LANES
    lanes = np.zeros(LANES)
    if whole:
        lanes += np.add.reduce(values[:whole].reshape(-1, LANES), axis=0)
    lanes[: len(values) - whole] += values[whole:]
    return float(lanes.cumsum()[-1])


def pairs_of(count: int) -> int:
    """Return how many pairs i ≥ j there are."""
    return count * (count + 1) // 2


def square_of(pairs: np.ndarray, count: int) -> Tensor:
    """Return the symmetric matrix, float64, of its values for i ≥ j in order."""
    square = torch.zeros(count, count, dtype=torch.float64)
    below = torch.tril_indices(count, count)
    square[below[0], below[1]] = torch.from_numpy(pairs.copy())
    square.T[below[0], below[1]] = square[below[0], below[1]]
    return square
