"""Intervals of mapped thresholds, by a bootstrap over the texts whose pairs they are measured on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge_index.threshold_map import PairCosines

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# The most texts that are used. Of more, every nth is taken, which makes intervals slightly wider.
MOST_TEXTS = 2000
DRAWS = 200
SHARE = 0.95


@dataclass(frozen=True)
class ThresholdInterval:
    """Ends of the 95 % bootstrap interval of the new model's threshold."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.4f} to {self.high:.4f}"


def threshold_intervals(
    old: Any,
    new: Any,
    thresholds: Sequence[float],
    mapped: Callable[[float], float],
    same: Sequence[tuple[int, int]] = (),
) -> list[ThresholdInterval]:
    """Return the interval of each threshold of the old model after its map to the new one.

    `mapped` returns the new model's threshold, measured on all texts. If draws are from a sample of them, as
    of many texts, they are shifted by the distance from the sample's own threshold to that one.
    `old` and `new` are both models' vectors of the same texts, and pairs in `same` do not count. Texts are
    drawn with replacement, as the pairs of one text are not independent of each other. A draw in which no
    pair is above the old threshold maps it to 1, so few pairs above it make a wide interval.
    """
    import numpy as np

    if not thresholds:
        return []
    pairs = _list_pairs(old, new, same)
    is_above = [pairs.old >= threshold for threshold in thresholds]
    draw = np.random.default_rng(0)
    found = np.empty((DRAWS, len(thresholds)))
    for row in range(DRAWS):
        counts = np.bincount(draw.integers(pairs.texts, size=pairs.texts), minlength=pairs.texts)
        found[row] = _map_thresholds(pairs, is_above, counts)
    if pairs.texts < len(old):
        sample_points = _map_thresholds(pairs, is_above, np.ones(pairs.texts, np.int64))
        points = np.array([mapped(threshold) for threshold in thresholds])
        found = (found + points - sample_points).clip(-1, 1)
    ends = np.quantile(found, [(1 - SHARE) / 2, (1 + SHARE) / 2], axis=0)
    return [ThresholdInterval(float(low), float(high)) for low, high in ends.T]


@dataclass(frozen=True, eq=False)
class _RankedPairs:
    """Pairs of different texts, the nearest by the new model first: their places and cosines."""

    texts: int
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    old: NDArray[np.float64]
    new: NDArray[np.float64]


def _map_thresholds(
    pairs: _RankedPairs, is_above: Sequence[NDArray[np.bool_]], counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the new model's threshold with as many pairs above it as each old one has.

    `is_above` has the pairs above each old threshold; `counts` is how often each text is in the draw.
    """
    import numpy as np

    weights = counts[pairs.first] * counts[pairs.second]
    sums = weights.cumsum()
    passing = np.array([int(weights[above].sum()) for above in is_above])
    places = np.searchsorted(sums, passing).clip(0, len(sums) - 1)
    return np.where(passing > 0, pairs.new[places], 1.0)


def _list_pairs(old: Any, new: Any, same: Sequence[tuple[int, int]]) -> _RankedPairs:
    import numpy as np

    total = len(old)
    chosen = np.unique(np.linspace(0, total - 1, min(total, MOST_TEXTS)).round().astype(int))
    place_of = {int(row): place for place, row in enumerate(chosen)}
    same_places = [(place_of[a], place_of[b]) for a, b in same if a in place_of and b in place_of]
    sides = [PairCosines(vectors[chosen], same_places) for vectors in (old, new)]
    first, second = sides[0].rows()
    cosines = [np.concatenate([*side.blocks()]) for side in sides]
    order = np.argsort(-cosines[1], kind="stable")
    return _RankedPairs(
        len(chosen), first[order], second[order], cosines[0][order], cosines[1][order]
    )
