"""Map from an old model's cosines to a new model's at equal false-positive rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge import DataError
from emberge.numerics import unit_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# False-positive rates of the table, and the number of points that the map is stored as.
RATES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)
_POINTS = 512
# Least number of texts of a map, and of pairs behind a threshold that is known.
FEWEST = 30


@dataclass(frozen=True)
class MovedThreshold:
    """Threshold of the old model, the new model's threshold with equally many false positives, and the rate.

    `known` is True if at least 30 pairs of different texts, but not all pairs, are above the old threshold.
    Below the smallest cosine of a pair nothing is measured, so there it is True only if both models have the
    same smallest cosine.
    """

    old: float
    new: float
    rate: float
    known: bool

    @property
    def shift(self) -> float:
        """Distance of the two thresholds, rounded to nine decimals."""
        return round(abs(self.new - self.old), 9)

    @property
    def doubt(self) -> str:
        """Reason why the threshold is not `known`."""
        if self.rate == 1:
            return "all pairs of different texts are more alike"
        return f"fewer than {FEWEST} pairs of different texts are that alike"


@dataclass(frozen=True)
class ThresholdMap:
    """Map of thresholds: `old` and `new` cosines with equal false-positive `rates`, in falling order.

    It is measured on `pairs` of different texts. The last point is (1, 1), the cosine of equal texts.
    """

    rates: tuple[float, ...]
    old: tuple[float, ...]
    new: tuple[float, ...]
    pairs: int

    def __call__(self, threshold: float) -> float:
        """Return the new model's threshold with as many false positives as the given one of the old model.

        The threshold is interpolated linearly between points, and from -1 to the first point.

        Raises:
            DataError: if the threshold is outside -1 to 1.
        """
        import numpy as np

        if not -1 <= threshold <= 1:
            raise DataError(f"a threshold of cosine is from -1 to 1, not {threshold:g}")
        if threshold < self.old[0]:
            return float(np.interp(threshold, (-1, self.old[0]), (-1, self.new[0])))
        return float(np.interp(threshold, self.old, self.new))

    def rate(self, threshold: float) -> float:
        """Return the rate of false positives at a threshold of the old model."""
        import numpy as np

        return float(np.interp(threshold, self.old, self.rates))

    def moved(self, threshold: float) -> MovedThreshold:
        """Return a threshold of the old model with the matching threshold of the new model.

        Raises:
            DataError: if the threshold is outside -1 to 1.
        """
        rate = self.rate(threshold)
        is_measured = threshold >= self.old[0] or self.old == self.new
        is_known = is_measured and rate * self.pairs >= FEWEST
        return MovedThreshold(threshold, self(threshold), rate, is_known)

    @property
    def shift(self) -> float:
        """Largest shift of a threshold among the rows of the table."""
        return max((abs(new - old) for _, old, new in self.table()), default=0.0)

    def table(self) -> Iterator[tuple[float, float, float]]:
        """Yield (rate, old threshold, new threshold) of each rate with at least 30 pairs."""
        import numpy as np

        rates = self.rates[::-1]
        for rate in RATES:
            if rate * self.pairs >= FEWEST:
                old, new = (
                    float(np.interp(rate, rates, side[::-1])) for side in (self.old, self.new)
                )
                yield rate, old, new

    def plain(self) -> dict[str, Any]:
        """Return the map as values of JSON."""
        return {
            "format": 1,
            "pairs": self.pairs,
            "rates": list(self.rates),
            "old": list(self.old),
            "new": list(self.new),
            "table": [{"rate": r, "old": old, "new": new} for r, old, new in self.table()],
        }


def threshold_map(old: Any, new: Any, same: Sequence[tuple[int, int]] = ()) -> ThresholdMap:
    """Return the map from the cosines of all pairs of different texts with rows in `old` and `new`.

    Pairs in `same` have the same meaning and are no false positives.

    Raises:
        DataError: if there are fewer than 30 texts, if `old` and `new` have different numbers of rows, or if
            rows are not finite.
    """
    import numpy as np

    if len(old) != len(new) or len(old) < FEWEST:
        raise DataError(
            f"thresholds need the vectors of the same {FEWEST} texts or more by both models, not of "
            f"{len(old)} and {len(new)}; give more texts"
        )
    for name, rows in (("old", old), ("new", new)):
        if not np.isfinite(rows).all():
            raise DataError(
                f"embeddings of the {name} model are not finite (NaN), so no threshold fits them; make the "
                "model again"
            )
    cosines = [PairCosines(rows, same) for rows in (old, new)]
    pairs = len(cosines[0])
    if pairs < 2 * FEWEST:
        raise DataError(
            f"only {pairs} pairs of texts do not mean the same, too few for thresholds; give more texts"
        )
    # Evenly spaced in the logarithm, down to a single pair.
    rates = np.geomspace(1.0, 1.0 / pairs, min(_POINTS, pairs))
    sides = [one.quantiles(1 - rates) for one in cosines]
    # `np.interp` requires ascending cosines; if some are equal, the last one counts.
    first, second = (np.maximum.accumulate(np.append(side, 1.0)).tolist() for side in sides)
    return ThresholdMap((*rates.tolist(), 0.0), tuple(first), tuple(second), pairs)


# Cosines of a block, and those that are kept at once: 8 and 32 MB.
BLOCK, KEPT = 1 << 20, 1 << 22
# Cells from -1 to 1 that cosines are counted in, and parts of a cell that has too many.
CELLS, PARTS = 1 << 20, 1 << 11


class PairCosines:
    """Cosines of all pairs of different rows of [n, d], except those in `same`.

    Each pass computes them again in float64, so that memory grows with n and not with n².
    """

    def __init__(self, rows: Any, same: Sequence[tuple[int, int]] = ()) -> None:
        import numpy as np

        self._unit = unit_rows(np.asarray(rows, np.float64))
        excluded_pairs = {(min(pair), max(pair)) for pair in same if pair[0] != pair[1]}
        self._same = np.array(sorted(excluded_pairs), np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._unit) * (len(self._unit) - 1) // 2 - len(self._same)

    def blocks(self) -> Iterator[NDArray[np.float64]]:
        """Yield the cosines of all pairs, each once."""
        for first, is_pair in self._list_masks():
            products = self._unit[first : first + len(is_pair)] @ self._unit[first:].T
            yield products[is_pair].clip(-1, 1)

    def rows(self) -> NDArray[np.int64]:
        """Return both row numbers of all pairs, [2, pairs], in the order of `blocks`."""
        import numpy as np

        return np.concatenate(
            [np.stack(np.nonzero(is_pair)) + first for first, is_pair in self._list_masks()], axis=1
        )

    def _list_masks(self) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Yield (first row, mask of the pairs of some rows with this and all later rows)."""
        import numpy as np

        count = len(self._unit)
        size = max(1, BLOCK // count)
        for first in range(0, count, size):
            is_pair = np.triu(np.ones((min(size, count - first), count - first), bool), 1)
            start, end = np.searchsorted(self._same[:, 0], [first, first + size])
            is_pair[tuple((self._same[start:end] - first).T)] = False
            yield first, is_pair

    def quantiles(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the quantiles of the cosines at these shares, as `np.quantile` does."""
        import numpy as np

        if len(self) <= KEPT:
            found: NDArray[np.float64] = np.quantile(np.concatenate([*self.blocks()]), shares)
            return found
        places = shares * (len(self) - 1)
        lower_ranks = np.floor(places).astype(np.int64)
        ranks = np.unique([lower_ranks, np.minimum(lower_ranks + 1, len(self) - 1)])
        values = self._find_ranked(ranks)
        lower_values = values[np.searchsorted(ranks, lower_ranks)]
        upper_values = values[np.searchsorted(ranks, np.minimum(lower_ranks + 1, len(self) - 1))]
        return lower_values + (upper_values - lower_values) * (places - lower_ranks)

    def _find_ranked(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the cosines at these ascending ranks, counted from 0 for the smallest.

        The range from -1 to 1 is divided into cells, and the cosines in cells with a needed rank are sorted.
        If these cosines do not fit into memory, cells are divided further and the result is exact to 1e-9.
        """
        import numpy as np

        counts = np.zeros(CELLS, np.int64)
        for block in self.blocks():
            counts += np.bincount(_scale_cosines(block).astype(np.int64), minlength=CELLS)
        ends = counts.cumsum()
        cells = np.searchsorted(ends, ranks, side="right")
        ranks_in_cell = ranks - (ends - counts)[cells]
        needed_cells = np.unique(cells)
        if counts[needed_cells].sum() > KEPT:
            return self._find_in_parts(cells, ranks_in_cell, needed_cells)
        is_sought = np.zeros(CELLS, bool)
        is_sought[needed_cells] = True
        parts = [
            block[is_sought[_scale_cosines(block).astype(np.int64)]] for block in self.blocks()
        ]
        sorted_cosines = np.sort(np.concatenate(parts))
        starts = np.concatenate([[0], counts[needed_cells].cumsum()])
        found_cosines: NDArray[np.float64] = sorted_cosines[
            starts[np.searchsorted(needed_cells, cells)] + ranks_in_cell
        ]
        return found_cosines

    def _find_in_parts(
        self, cells: NDArray[np.int64], inside: NDArray[np.int64], needed_cells: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the cosines at ranks within cells, rounded down to the bounds of finer cells."""
        import numpy as np

        row_of = np.full(CELLS, -1, np.int64)
        row_of[needed_cells] = np.arange(len(needed_cells))
        counts = np.zeros(len(needed_cells) * PARTS, np.int64)
        for block in self.blocks():
            scaled = _scale_cosines(block)
            cell = scaled.astype(np.int64)
            row = row_of[cell]
            part = ((scaled - cell) * PARTS).astype(np.int64)
            counts += np.bincount((row * PARTS + part)[row >= 0], minlength=len(counts))
        ends = counts.reshape(-1, PARTS).cumsum(1)
        positions = [
            cell + np.searchsorted(ends[row_of[cell]], rank, side="right") / PARTS
            for cell, rank in zip(cells, inside, strict=True)
        ]
        return np.array(positions) * (2 / CELLS) - 1


def _scale_cosines(cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return cosines scaled to positions among the cells (bins), from 0 to below CELLS."""
    import numpy as np

    scaled: NDArray[np.float64] = np.minimum((cosines + 1) * (CELLS / 2), np.nextafter(CELLS, 0))
    return scaled
