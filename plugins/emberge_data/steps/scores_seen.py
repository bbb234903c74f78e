"""Scores as a message shows them, to see how far off a threshold is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def spread(values: NDArray[Any]) -> str:
    """Return the lowest, median and highest of some numbers in words."""
    import numpy as np

    found = np.asarray(values, dtype=np.float64)
    found = found[np.isfinite(found)]
    if not len(found):
        return "none"
    low, middle, high = np.quantile(found, [0, 0.5, 1], method="nearest")
    return f"{low:.4g} to {high:.4g}, median {middle:.4g}"
