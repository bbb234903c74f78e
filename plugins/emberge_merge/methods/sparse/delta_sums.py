"""Sums of the deltas' magnitudes or squares, added in a fixed order.

Lane l adds elements l, l + 1,024, … of a run of 65,536 in the numbers' own type. The lanes of all runs are
added in float64, and at last the lanes in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from emberge.numerics import DeltaProgram, KernelRows
    from torch import Tensor

_SUMMED_LENGTH = 1 << 16


@dataclass(frozen=True, slots=True)
class MagnitudeSums:
    """Each model's sum of |delta| or, with `squared`, of delta², float64 [models]."""

    squared: bool = False

    of_deltas = True

    def by_torch(self, rows: DeltaProgram) -> np.ndarray:
        import numpy as np

        return np.array([_sum_in_lanes(delta, self.squared) for delta in rows.deltas])

    def by_kernels(self, rows: KernelRows) -> np.ndarray:
        import numpy as np
        from emberge.numerics import LANES, add_lanes

        lanes = np.zeros((rows.count, LANES))
        rows.call("sums", self.squared, 0, lanes[:0], rows.count, lanes)
        return add_lanes(lanes)


@dataclass(frozen=True, slots=True)
class SumsBeforeAndAfter:
    """Each model's sums of |delta| before and after the recorded changes, from one reading."""

    of_deltas = True

    def by_torch(self, rows: DeltaProgram) -> tuple[np.ndarray, np.ndarray]:
        return MagnitudeSums().by_torch(rows.original), MagnitudeSums().by_torch(rows)

    def by_kernels(self, rows: KernelRows) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np
        from emberge.numerics import LANES, add_lanes

        before, after = (np.zeros((rows.count, LANES)) for _ in range(2))
        rows.call("sums", False, rows.count, before, rows.count, after)
        return add_lanes(before), add_lanes(after)


def _sum_in_lanes(delta: Tensor, squared: bool) -> float:
    """Return one model's sum: on a CPU in fixed lanes, elsewhere in the device's order."""
    import numpy as np
    import torch
    from emberge.numerics import LANES, add_lanes, take_tensor_like

    flat = delta.reshape(-1)
    magnitudes = (torch.square if squared else torch.abs)(flat, out=take_tensor_like(flat))
    if magnitudes.device.type != "cpu":
        return float(magnitudes.sum(dtype=torch.float64))
    values: np.ndarray = magnitudes.numpy()
    whole = len(values) // _SUMMED_LENGTH * _SUMMED_LENGTH
    runs = values[:whole].reshape(-1, _SUMMED_LENGTH // LANES, LANES)
    # Not one call for each run: a call costs as much as a thousand additions.
    lanes = np.add.reduce(np.add.reduce(runs, axis=1), axis=0, dtype=np.float64)
    padded = np.pad(values[whole:], (0, -len(values) % LANES)).reshape(-1, LANES)
    return float(add_lanes(lanes + np.add.reduce(padded, axis=0)))
