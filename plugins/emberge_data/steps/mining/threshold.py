"""Positive-aware threshold: the score above which a passage may well be a positive nobody has marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from emberge_data.steps.search.exclusions import Lists
    from emberge_data.steps.search.space import Space


def thresholds(positives: NDArray[np.float64], margin: float) -> NDArray[np.float64]:
    """Return the highest score of a negative beside positives of these scores: s - (1 - margin) |s|.

    For a positive score that is `margin` times the score (NV-Retriever, arXiv:2407.15831); for a negative
    one, where the product would be above the score, it is as far below.
    """
    return positives - (1 - margin) * abs(positives)


def lowest_positives(
    space: Space, queries: NDArray[np.int64], positives: Lists
) -> NDArray[np.float64]:
    """Return the lowest score of the positives of each of these queries, which have one or more."""
    import numpy as np

    rows, places = positives.pairs(queries)
    scores = space.scores(queries[rows], places)
    found = np.full(len(queries), np.inf)
    np.minimum.at(found, rows, scores)
    return found


def margin_problem(margin: float | None) -> str | None:
    """Return the problem of a margin; None if there is none."""
    if margin is None or 0 <= margin <= 1:
        return None
    return (
        f"margin {margin} is not between 0 and 1: it is the share of the lowest positive's score that a "
        "negative may have; 0.95 is usual, null takes every passage"
    )
