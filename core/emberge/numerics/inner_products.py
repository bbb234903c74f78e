"""Inner products of nearly parallel vectors, summed in an order that compiled kernels follow too.

Lane l adds the products of elements l, l + 512, … in float32 within a run of 32,768 elements, the runs'
lanes are added in float64, and at last the lanes in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from emberge.numerics.buffers import pooled_like

__all__ = ["LANES", "RUN", "Sums", "inner_products", "square", "sums_of"]

LANES, RUN = 512, 1 << 15


class Sums(Protocol):
    """Sums of products of vectors, float64 [n, n]; `apart` takes the others' differences to the first one."""

    def __call__(self, *, apart: bool) -> Tensor: ...


def inner_products(sums: Sums, *, differences: bool) -> dict[str, Tensor]:
    """Return the products of vectors, and of the first one and the others' differences to it."""
    if not differences:
        return {"products": sums(apart=False)}
    apart = sums(apart=True)
    first = apart[0].clone()
    first[0] = 0.0
    plain = apart + first + first[:, None] + apart[0, 0]
    plain[0] = plain[:, 0] = apart[0, 0] + first
    # Short differences give the vectors' products as exactly as sums of their own.
    if float(apart.diagonal()[1:].sum()) > float(plain.diagonal().min()) / 4:
        plain = sums(apart=False)
    return {"products": plain, "differences": apart}


def sums_of(vectors: Tensor) -> Sums:
    """Return the sums of float32 vectors [n, *rows] on a CPU."""
    rows: np.ndarray = vectors.reshape(len(vectors), -1).numpy()
    return lambda apart: square(_lanes(rows, apart=apart), len(rows))


def square(lanes: np.ndarray, count: int) -> Tensor:
    """Return the symmetric matrix of sums whose lower triangle's lanes are given, row by row."""
    found = np.zeros((count, count))
    found[np.tril_indices(count)] = lanes.cumsum(1)[:, -1]
    return torch.from_numpy(found + np.tril(found, -1).T)


def _lanes(rows: np.ndarray, *, apart: bool) -> np.ndarray:
    count, step = len(rows), min(RUN, rows.shape[1] + LANES)
    lanes = np.zeros((count * (count + 1) // 2, LANES))
    once = np.empty((count, LANES), np.float32)
    like = torch.empty(0)
    kept: np.ndarray = pooled_like(like, (count, step)).numpy()
    product: np.ndarray = pooled_like(like, (count, step)).numpy()
    for part in _runs(rows):
        size = part.shape[1]
        if apart:
            origin = part[0]
            part = np.subtract(part, origin, out=kept[:, :size])
            part[0] = origin
        at = 0
        for number, row in enumerate(part, 1):
            some = np.multiply(part[:number], row, out=product[:number, :size])
            by_lane = some.reshape(number, -1, LANES)
            lanes[at : at + number] += np.add.reduce(by_lane, axis=1, out=once[:number])
            at += number
    return lanes


def _runs(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the runs of all rows, the last one with zeros up to a whole number of lanes."""
    for start in range(0, rows.shape[1], RUN):
        part = rows[:, start : start + RUN]
        missing = -part.shape[1] % LANES
        yield np.pad(part, ((0, 0), (0, missing))) if missing else part
