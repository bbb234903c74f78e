"""Measures of mapped vectors: whether they have length 1, and the share of a new model's gain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Documents of a query that are looked at.
NEIGHBOURS = 10


def are_unit(vectors: NDArray[Any]) -> bool:
    """Return whether all vectors but those of zeros have length 1, as far as float16 can tell."""
    import numpy as np

    found = np.asarray(vectors, np.float64)
    lengths = np.sqrt((found * found).sum(1))
    return bool((np.abs(lengths[lengths > 0] - 1) < 5e-3).all())


def gain_kept(scores: Mapping[str, float], mapped: str = "mapped") -> float | None:
    """Return (mapped - old) / (new - old): the share of the new model's gain; None where there is none."""
    gain = scores["new"] - scores["old"]
    return (scores[mapped] - scores["old"]) / gain if gain > 0 else None
