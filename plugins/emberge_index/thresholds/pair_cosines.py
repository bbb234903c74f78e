"""Cosines of all pairs of texts: counted and ranked block by block, never all in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from emberge.numerics import unit_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Cosines of a block, and those that are kept at once: 8 and 32 MB.
BLOCK, KEPT = 1 << 20, 1 << 22
# Cells from -1 to 1 that cosines are counted in, and parts of a cell that has too many.
CELLS, PARTS = 1 << 20, 1 << 11


class PairCosines:
    """Cosines of the pairs of different rows of [n, d], but for those in `same`.

    All of them are computed again in each pass, in float64, so that memory grows with n and not with n².
    """

    def __init__(self, rows: Any, same: Sequence[tuple[int, int]] = ()) -> None:
        import numpy as np

        self._unit = unit_rows(np.asarray(rows, np.float64))
        left = {(min(pair), max(pair)) for pair in same if pair[0] != pair[1]}
        self._same = np.array(sorted(left), np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._unit) * (len(self._unit) - 1) // 2 - len(self._same)

    def blocks(self) -> Iterator[NDArray[np.float64]]:
        """Yield the cosines of all pairs, each once."""
        import numpy as np

        count = len(self._unit)
        size = max(1, BLOCK // count)
        for first in range(0, count, size):
            found = self._unit[first : first + size] @ self._unit[first:].T
            counted = np.triu(np.ones(found.shape, bool), 1)
            start, end = np.searchsorted(self._same[:, 0], [first, first + size])
            counted[tuple((self._same[start:end] - first).T)] = False
            yield found[counted].clip(-1, 1)

    def quantiles(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the cosines below which these shares of the pairs are, as `np.quantile` does."""
        import numpy as np

        if len(self) <= KEPT:
            found: NDArray[np.float64] = np.quantile(np.concatenate([*self.blocks()]), shares)
            return found
        places = shares * (len(self) - 1)
        lower = np.floor(places).astype(np.int64)
        ranks = np.unique([lower, np.minimum(lower + 1, len(self) - 1)])
        values = self._ranked(ranks)
        below = values[np.searchsorted(ranks, lower)]
        above = values[np.searchsorted(ranks, np.minimum(lower + 1, len(self) - 1))]
        return below + (above - below) * (places - lower)

    def _ranked(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the cosines of these ranks, from 0 for the smallest; ranks rise.

        A cell between -1 and 1 that has one of them is sorted. One with so many cosines that they do not fit
        the memory is divided, and a part of it stands for its cosines, which are 1e-9 apart at most.
        """
        import numpy as np

        counts = np.zeros(CELLS, np.int64)
        for block in self.blocks():
            counts += np.bincount(_scaled(block).astype(np.int64), minlength=CELLS)
        ends = counts.cumsum()
        cells = np.searchsorted(ends, ranks, side="right")
        inside = ranks - (ends - counts)[cells]
        wanted = np.unique(cells)
        if counts[wanted].sum() > KEPT:
            return self._parted(cells, inside, wanted)
        sought = np.zeros(CELLS, bool)
        sought[wanted] = True
        parts = [block[sought[_scaled(block).astype(np.int64)]] for block in self.blocks()]
        kept = np.sort(np.concatenate(parts))
        starts = np.concatenate([[0], counts[wanted].cumsum()])
        ranked: NDArray[np.float64] = kept[starts[np.searchsorted(wanted, cells)] + inside]
        return ranked

    def _parted(
        self, cells: NDArray[np.int64], inside: NDArray[np.int64], wanted: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the cosines at ranks inside cells, as the lower ends of parts of those cells."""
        import numpy as np

        row_of = np.full(CELLS, -1, np.int64)
        row_of[wanted] = np.arange(len(wanted))
        counts = np.zeros(len(wanted) * PARTS, np.int64)
        for block in self.blocks():
            scaled = _scaled(block)
            cell = scaled.astype(np.int64)
            row = row_of[cell]
            part = ((scaled - cell) * PARTS).astype(np.int64)
            counts += np.bincount((row * PARTS + part)[row >= 0], minlength=len(counts))
        ends = counts.reshape(-1, PARTS).cumsum(1)
        found = [
            cell + np.searchsorted(ends[row_of[cell]], place, side="right") / PARTS
            for cell, place in zip(cells, inside, strict=True)
        ]
        return np.array(found) * (2 / CELLS) - 1


def _scaled(cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return cosines as places among the cells, from 0 to below CELLS."""
    import numpy as np

    found: NDArray[np.float64] = np.minimum((cosines + 1) * (CELLS / 2), np.nextafter(CELLS, 0))
    return found
