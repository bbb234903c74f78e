"""Orders of documents: the most hit by a log of queries first, or those that a translation knows least."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from emberge.numerics import rank_discounts, top_k, unit_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from emberge_index.translation.translation_file import Translation


# Hits of a query that count.
DEPTH = 20
# Queries that are compared with a block at once.
QUERIES = 256


class Hits:
    """The first DEPTH documents of each query, found while blocks of documents pass by."""

    def __init__(self, queries: NDArray[Any]) -> None:
        import numpy as np

        self._queries = unit_rows(np.asarray(queries, np.float32))
        self._scores = np.full((len(queries), DEPTH), -np.inf, np.float32)
        self._rows = np.full((len(queries), DEPTH), -1, np.int64)

    def add(self, documents: NDArray[Any], first: int) -> None:
        """Compare the queries with documents, whose rows are counted from `first`."""
        import numpy as np

        found = unit_rows(np.asarray(documents, np.float32))
        rows = np.arange(first, first + len(found))
        for start in range(0, len(self._queries), QUERIES):
            part = slice(start, start + QUERIES)
            scores = np.hstack([self._scores[part], self._queries[part] @ found.T])
            own = np.broadcast_to(rows, (len(scores), len(rows)))
            numbers = np.hstack([self._rows[part], own])
            best = top_k(scores, DEPTH)
            self._scores[part] = np.take_along_axis(scores, best, 1)
            self._rows[part] = np.take_along_axis(numbers, best, 1)

    def weights(self, rows: int) -> NDArray[np.float64]:
        """Return for each document the sum over queries of 1 / log2(rank + 1)."""
        import numpy as np

        found = np.zeros(rows)
        discounts = np.broadcast_to(rank_discounts(DEPTH), self._rows.shape)
        known = self._rows >= 0
        np.add.at(found, self._rows[known], discounts[known])
        return found


def by_hits(hits: NDArray[np.float64], strangeness: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return rows, the most hit first; of those that are hit alike, the strangest first."""
    import numpy as np

    return np.lexsort((-strangeness, -hits))


def strangeness_of_each(
    translation: Translation, blocks: Iterable[NDArray[Any]]
) -> NDArray[np.float64]:
    """Return how far each vector is from those of the fit, where the translation errs the most.

    One of zeros, as of an empty document, is -1: there is nothing to embed anew.
    """
    import numpy as np

    axes = np.asarray(translation.axes, np.float64)
    found = [np.zeros(0)]
    for block in blocks:
        far = (((block - translation.mean) @ axes) ** 2).sum(1) / translation.usual
        found.append(np.where(block.any(axis=1), far, -1.0))
    return np.concatenate(found)
