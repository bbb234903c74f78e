"""Rows of length 1, and the highest scores of each row, in numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
