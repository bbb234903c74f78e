"""Sums in float64 in 64 lanes: lane l adds elements l, l + 64, …, and then the lanes are added in order.

The same sequence everywhere, which a library's own sums are not, so a sum has the same bits on every machine.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["LANES", "sums"]

LANES = 64


def sums(rows: Tensor, *, squares: bool) -> Tensor:
    """Return the sums of magnitudes or squares of [n, elements], float64 [n]."""
    found = []
    for row in rows:
        wide = row.cpu().numpy().astype(np.float64)
        found.append(_sum(np.square(wide, out=wide) if squares else np.abs(wide, out=wide)))
    return torch.tensor(found, dtype=torch.float64)


def _sum(values: np.ndarray) -> float:
    whole = len(values) // LANES * LANES
    lanes = np.zeros(LANES)
    if whole:
        lanes += np.add.reduce(values[:whole].reshape(-1, LANES), axis=0)
    lanes[: len(values) - whole] += values[whole:]
    return float(lanes.cumsum()[-1])
