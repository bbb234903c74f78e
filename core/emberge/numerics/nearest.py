"""Search of the nearest rows by cosine and metrics of ranked lists, in numpy; ties keep row order.

scikit-learn's `ndcg_score` needs the scores of all documents in one matrix, and averages over the orders of
equal scores or puts the later document first. Here only a list of the first ten is scored, in an order that
depends only on the vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Cosines that are in memory at once: 16 MB of float32.
_CELLS = 4 << 20
# Length below which a row counts as one of zeros: float32 squares nothing that is shorter.
_LEAST_LENGTH = 1e-30


def unit_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Return rows [n, d] scaled to length 1, in their precision or at least float32; zeros stay zeros."""
    import numpy as np

    rows = np.asarray(rows, np.result_type(rows, np.float32))
    units: NDArray[Any] = rows / np.maximum(
        np.linalg.norm(rows, axis=1, keepdims=True), rows.dtype.type(_LEAST_LENGTH)
    )
    return units


def row_cosines(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    """Return the cosine of each row of `first` with the same row of `second`, float64 [n]."""
    import numpy as np

    cosines: NDArray[np.float64] = np.einsum(
        "ij,ij->i", unit_rows(first), unit_rows(second), dtype=np.float64
    )
    return cosines


def top_k(scores: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the indices of the `count` highest scores of each row, int64 [n, count], highest first.

    Equal scores keep their order, and NaN comes last, as in a stable sort of the whole row.
    """
    import numpy as np

    negated_scores = -scores
    if count >= scores.shape[1]:
        return np.argsort(negated_scores, axis=1, kind="stable")[:, :count]
    last_score = np.partition(negated_scores, count - 1, axis=1)[:, count - 1, None]
    if np.isnan(last_score).any():
        return np.argsort(negated_scores, axis=1, kind="stable")[:, :count]
    selected = negated_scores <= last_score
    # Several scores may equal the last one: those that come first in their row count as higher.
    tied_rows = np.flatnonzero(selected.sum(1) > count)
    is_higher, is_tied = (
        negated_scores[tied_rows] < last_score[tied_rows],
        negated_scores[tied_rows] == last_score[tied_rows],
    )
    tie_places = count - is_higher.sum(1, keepdims=True)
    selected[tied_rows] = is_higher | (is_tied & (np.cumsum(is_tied, axis=1) <= tie_places))
    places = np.nonzero(selected)[1].reshape(len(scores), count)
    order = np.argsort(np.take_along_axis(negated_scores, places, 1), axis=1, kind="stable")
    return np.take_along_axis(places, order, 1)


def nearest_rows(queries: NDArray[Any], rows: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the indices of the `count` rows nearest to each query by cosine, int64, nearest first.

    If there are fewer than `count` rows, the result has fewer columns.
    """
    import numpy as np

    unit_queries, units = unit_rows(queries), unit_rows(rows)
    count = min(count, len(units))
    nearest = np.empty((len(unit_queries), count), np.int64)
    step = max(1, _CELLS // max(1, len(units)))
    for start in range(0, len(unit_queries), step):
        part = slice(start, start + step)
        cosines = unit_queries[part] @ units.T
        nearest[part] = top_k(cosines, count)
    return nearest


def rank_discounts(count: int) -> NDArray[np.float64]:
    """Return 1 / log2(rank + 1) for the ranks from 1 to `count`, float64."""
    import numpy as np

    discounts: NDArray[np.float64] = 1 / np.log2(np.arange(2, count + 2))
    return discounts


def ndcg(nearest: NDArray[np.int64], grades: Sequence[Mapping[int, float]]) -> float:
    """Return the mean nDCG of ranked lists of indices [queries, count], with linear gains.

    `grades` maps each query's judged indices to grades; a grade below zero counts as zero. A query without a
    grade above zero scores 0 (Järvelin and Kekäläinen, 2002).
    """
    import numpy as np

    discounts = rank_discounts(nearest.shape[1])
    scores = []
    for places, judged in zip(nearest, grades, strict=True):
        gains = np.array([max(0.0, judged.get(int(place), 0.0)) for place in places])
        ideal_gains = np.array(
            sorted((max(0.0, g) for g in judged.values()), reverse=True)[: len(gains)]
        )
        ideal = float((ideal_gains * discounts[: len(ideal_gains)]).sum())
        scores.append(float((gains * discounts).sum()) / ideal if ideal else 0.0)
    return float(np.mean(scores))
