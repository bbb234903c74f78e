"""Sums in float64 in 64 lanes: lane l adds elements l, l + 64, …, and then the lanes are added in order.

The same sequence everywhere, which a library's own sums are not, so a sum has the same bits on every machine.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["LANES", "sums"]

LANES, RUN = 64, 1 << 15


def sums(rows: Tensor, *, squares: bool) -> Tensor:
    """Return the sums of magnitudes or squares of [n, elements], float64 [n]."""
    found = [_sum(row.cpu().numpy(), squares=squares) for row in rows]
    return torch.tensor(found, dtype=torch.float64)


def _sum(values: np.ndarray, *, squares: bool) -> float:
    # Runs stay in the second cache; the lanes so far are the first row of the next run.
    rows = np.zeros((RUN // LANES + 1, LANES))
    for start in range(0, len(values), RUN):
        part = values[start : start + RUN]
        count = -(-len(part) // LANES)
        flat = rows[1 : count + 1].reshape(-1)
        flat[: len(part)], flat[len(part) :] = part, 0.0
        np.square(flat, out=flat) if squares else np.abs(flat, out=flat)
        rows[0] = np.add.reduce(rows[: count + 1], axis=0)
    return float(rows[0].cumsum()[-1])
