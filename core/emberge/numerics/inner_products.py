"""Inner products of nearly parallel vectors, summed in an order that compiled kernels follow too.

Lane l adds the products of elements l, l + 512, … in float32 within a run of 32,768 elements, the runs'
lanes are added in float64, and at last the lanes in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

__all__ = ["LANES", "RUN", "Sums", "inner_products", "lane_sums", "sums_of"]

LANES, RUN = 512, 1 << 15

Sums = Callable[[np.ndarray], np.ndarray]
"""The sums of products of pairs of vectors [n, 2]; number count + m is vector m less the first one."""


def inner_products(sums: Sums, count: int, *, differences: bool) -> dict[str, Tensor]:
    """Return the products of `count` vectors, and of the first one and the others' differences to it."""
    if not differences:
        return {"products": _square(sums(_pairs(range(count))), count)}
    rows = [0, *range(count + 1, 2 * count)]
    squares = [(m, m) for m in range(1, count)]
    found = sums(np.concatenate([_pairs(rows), np.array(squares, np.int64).reshape(-1, 2)]))
    apart = _square(found[: len(found) - len(squares)], count)
    own = torch.from_numpy(np.concatenate([found[:1], found[len(found) - len(squares) :]]))
    if float(apart.diagonal()[1:].max() if squares else 0.0) <= float(own.min()) / 4:
        # Short differences give the vectors' products as exactly as these would be summed themselves.
        first = apart[0].clone()
        first[0] = 0.0
        plain = apart + first + first[:, None] + apart[0, 0]
        plain[0] = plain[:, 0] = apart[0, 0] + first
        plain.diagonal().copy_(own)
    else:
        plain = _square(sums(_pairs(range(count))), count)
    return {"products": plain, "differences": apart}


def sums_of(vectors: Tensor) -> Sums:
    """Return the sums of float32 vectors [n, *rows] on a CPU."""
    rows: np.ndarray = vectors.reshape(len(vectors), -1).numpy()
    return lambda pairs: lane_sums(_lanes(rows, pairs))


def lane_sums(lanes: np.ndarray) -> np.ndarray:
    """Return the sums of float64 lanes [n, lanes], added in order."""
    total: np.ndarray = lanes.cumsum(1)[:, -1]
    return total


def _lanes(rows: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    count = len(rows)
    lanes, once = np.zeros((len(pairs), LANES)), np.empty(LANES, np.float32)
    product = np.empty(RUN, np.float32)
    differences = np.empty((count, RUN), np.float32)
    for part in _runs(rows):
        apart = differences[:, : part.shape[1]]
        if pairs.max() >= count:
            np.subtract(part, part[0], out=apart)
        known = [*part, *apart]
        for lane, (one, other) in zip(lanes, pairs.tolist(), strict=True):
            some = np.multiply(known[one], known[other], out=product[: part.shape[1]])
            lane += np.add.reduce(some.reshape(-1, LANES), axis=0, out=once)
    return lanes


def _runs(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the runs of all rows, the last one with zeros up to a whole number of lanes."""
    for start in range(0, rows.shape[1], RUN):
        part = rows[:, start : start + RUN]
        missing = -part.shape[1] % LANES
        yield np.pad(part, ((0, 0), (0, missing))) if missing else part


def _pairs(rows: range | list[int]) -> np.ndarray:
    return np.array([(a, b) for n, a in enumerate(rows) for b in rows[: n + 1]], np.int64)


def _square(found: np.ndarray, count: int) -> Tensor:
    """Return a symmetric matrix by its lower triangle, row by row."""
    square = np.zeros((count, count))
    square[np.tril_indices(count)] = found
    return torch.from_numpy(square + np.tril(square, -1).T)

