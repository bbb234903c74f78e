"""Sums in lanes, an order that compiled kernels follow too, which a library's own sums have none of.

Lane l adds elements l, l + 1,024, … of a run of 65,536, in the numbers' own type; the runs' lanes are added
in float64, and at last the lanes in order. So a sum has the same bits on every machine.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from emberge.numerics.buffers import pooled_like

__all__ = ["LANES", "RUN", "sums", "total"]

LANES, RUN = 1 << 10, 1 << 16


def sums(rows: Tensor, *, squares: bool) -> Tensor:
    """Return the sums of magnitudes or squares of [n, elements], float64 [n].

    Elsewhere than on a CPU they are summed in the device's order.
    """
    change = torch.square if squares else torch.abs
    alone = pooled_like(rows, rows.shape[1:])
    found = [_sum(change(row, out=alone)) for row in rows]
    return torch.tensor(found, dtype=torch.float64)


def total(lanes: np.ndarray) -> np.ndarray:
    """Return the sums of float64 lanes [..., lanes], in order."""
    found: np.ndarray = lanes.cumsum(-1)[..., -1]
    return found


def _sum(row: Tensor) -> float:
    if row.device.type != "cpu":
        return float(row.sum(dtype=torch.float64))
    values: np.ndarray = row.numpy()
    whole = len(values) // RUN * RUN
    runs = values[:whole].reshape(-1, RUN // LANES, LANES)
    # Not one call for each run: a call costs as much as a thousand additions.
    lanes = np.add.reduce(np.add.reduce(runs, axis=1), axis=0, dtype=np.float64)
    rest = np.pad(values[whole:], (0, -len(values) % LANES)).reshape(-1, LANES)
    return float(total(lanes + np.add.reduce(rest, axis=0)))
