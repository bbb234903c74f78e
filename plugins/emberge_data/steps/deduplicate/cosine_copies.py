"""Rows that mean the same as an earlier one, by the cosines of their vectors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from emberge_data.steps.search.space import Space
from emberge_data.steps.search.tiles import full_precision

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from emberge_data.steps.deduplicate.row_vectors import JoinedVectors, RowVectors
    from emberge_data.steps.deduplicate.units import RowsInOrder


_ROWS, _COLUMNS = 1024, 8192


def cosine_copies(
    rows: RowsInOrder, kept: NDArray[np.bool_], vectors: RowVectors, threshold: float, device: str
) -> Iterator[tuple[int, int]]:
    """Yield (row, earlier row) of rows whose anchors have a cosine of `threshold` or more.

    The tags of both are equal, and each positive has such a cosine with one of the earlier row's. The earlier
    row is no copy itself.
    """
    numbers = np.flatnonzero(kept)
    stays = np.ones(len(numbers), dtype=bool)
    positives = Space(vectors.positives, vectors.positives, device)

    def same(row: int, earlier: int) -> bool:
        if rows.units(row)[0].tag != rows.units(earlier)[0].tag:
            return False
        mine, theirs = vectors.positives_of(row), vectors.positives_of(earlier)
        if not len(mine) or not len(theirs):
            return len(mine) == len(theirs)
        scores = positives.scores(mine, np.tile(theirs, (len(mine), 1)))
        return bool((scores.max(axis=1) >= threshold).all())

    pairs = pairs_above(vectors.anchors.of(numbers), threshold, device)
    for one, group in groupby(pairs, key=itemgetter(0)):
        row = int(numbers[one])
        others = (int(numbers[other]) for _, other in group if stays[other])
        earlier = next((other for other in others if same(row, other)), None)
        if earlier is not None:
            stays[one] = False
            yield row, earlier


def pairs_above(
    vectors: JoinedVectors, threshold: float, device: str = "cpu"
) -> Iterator[tuple[int, int]]:
    """Yield (i, j) with j < i, in order, of all pairs with a cosine of `threshold` or more.

    All pairs are multiplied in float32, block by block; exact cosines decide about those near the threshold.
    """
    space = Space(vectors, vectors, device)
    least = threshold - 2 * space.slack if len(vectors) else threshold
    for first in range(0, len(vectors), _ROWS):
        last = min(first + _ROWS, len(vectors))
        found = []
        with full_precision():
            units = space.queries.units(slice(first, last))
            for column in range(0, last, _COLUMNS):
                others = space.documents.units(slice(column, min(column + _COLUMNS, last)))
                high = (units @ others.T >= least).nonzero().cpu().numpy()
                high += np.array([first, column])
                found.append(high[high[:, 1] < high[:, 0]])
        pairs = np.concatenate(found)
        exact = space.scores(pairs[:, 0], pairs[:, 1]) >= threshold
        pairs = pairs[exact]
        yield from map(tuple, pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].tolist())
