"""Rows that mean the same as an earlier row, by the cosines of their vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from emberge_data.steps.search.exact import full_precision
from emberge_data.steps.search.space import Space

if TYPE_CHECKING:
    from emberge import Workspace
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.deduplicate.units import RowsInOrder
    from emberge_data.steps.search.space import StoredVectors
    from emberge_data.steps.teacher import OpenTeacher, Teacher

    Places = NDArray[np.int64]

_ROWS, _COLUMNS = 1024, 8192


class JoinedVectors:
    """Vectors of several sets under one numbering: vector i is number `places[i]` of the set `parts[i]`."""

    def __init__(self, sets: Sequence[StoredVectors], parts: Places, places: Places) -> None:
        self._sets = sets
        self._parts = parts
        self._places = places

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, numbers: Any) -> NDArray[np.float32]:
        parts, places = self._parts[numbers], self._places[numbers]
        dimension = self._sets[int(parts[0]) if len(parts) else 0][0:1].shape[1]
        vectors = np.empty((len(parts), dimension), np.float32)
        for part in np.unique(parts).tolist():
            in_part = parts == part
            vectors[in_part] = self._sets[part][places[in_part]]
        return vectors

    def of(self, numbers: Places) -> JoinedVectors:
        """Return the vectors with these indices, renumbered from 0."""
        return JoinedVectors(self._sets, self._parts[numbers], self._places[numbers])


@dataclass(frozen=True)
class RowVectors:
    """Vectors of rows, numbered over all sets; `ends` [rows] is the end of each row's positives."""

    anchors: JoinedVectors
    positives: JoinedVectors
    ends: Places

    def positives_of(self, row: int) -> Places:
        """Return the indices of a row's positives."""
        return np.arange(self.ends[row - 1] if row else 0, self.ends[row])


def embed_rows(
    datasets: Sequence[StoredDataset], teacher: Teacher, workspace: Workspace, *, positives: bool
) -> RowVectors:
    """Return the vectors of all rows, those of positives only if requested; each rank embeds a share."""
    anchors, positive_vectors = [], []
    with teacher.opened(workspace) as teacher_model:
        for number, dataset in enumerate(datasets, 1):
            with workspace.part("set", number, len(datasets), dataset.info.name):
                anchors.append(_embed_anchors(dataset, teacher_model, workspace))
                if positives:
                    positive_vectors.append(_embed_positives(dataset, teacher_model, workspace))
    counts = [count for *_, each in positive_vectors for count in each]
    return RowVectors(
        _join_vectors(anchors),
        _join_vectors([(vectors, places) for vectors, places, _ in positive_vectors]),
        np.cumsum(np.array(counts or [0] * sum(map(len, datasets)), dtype=np.int64)),
    )


def _join_vectors(sets: Sequence[tuple[StoredVectors, Places]]) -> JoinedVectors:
    none = np.zeros(0, np.int64)
    parts = [np.full(len(places), number) for number, (_, places) in enumerate(sets)]
    return JoinedVectors(
        [vectors for vectors, _ in sets],
        np.concatenate([none, *parts]),
        np.concatenate([none, *(places for _, places in sets)]),
    )


def _embed_anchors(
    dataset: StoredDataset, teacher: OpenTeacher, workspace: Workspace
) -> tuple[StoredVectors, Places]:
    from emberge.data import DistinctTexts

    rows = range(len(dataset))
    texts = DistinctTexts((dataset[row].anchor for row in rows), workspace.work)
    return teacher.queries(texts, dataset), texts.places


def _embed_positives(
    dataset: StoredDataset, teacher: OpenTeacher, workspace: Workspace
) -> tuple[StoredVectors, Places, list[int]]:
    """Return vectors of positives, except for rows whose positives are other rows with the same label."""
    from emberge.data import DistinctTexts

    counts: list[int] = []

    def texts() -> Iterator[str]:
        for row in range(len(dataset)):
            example = dataset[row]
            positives = example.positives if example.label is None else ()
            counts.append(len(positives))
            yield from positives

    distinct = DistinctTexts(texts(), workspace.work)
    return teacher.documents(distinct, dataset), distinct.places, counts


def cosine_copies(
    rows: RowsInOrder,
    is_kept: NDArray[np.bool_],
    vectors: RowVectors,
    threshold: float,
    device: str,
) -> Iterator[tuple[int, int]]:
    """Yield (row, earlier row) of rows whose anchors have a cosine of `threshold` or more.

    The tags of both rows are equal, and each positive has a cosine of `threshold` or more with some positive
    of the earlier row. The earlier row is not a copy itself.
    """
    kept_rows = np.flatnonzero(is_kept)
    stays_kept = np.ones(len(kept_rows), dtype=bool)
    positives = Space(vectors.positives, vectors.positives, device)

    def same(row: int, earlier: int) -> bool:
        if rows.units(row)[0].tag != rows.units(earlier)[0].tag:
            return False
        row_positives, earlier_positives = vectors.positives_of(row), vectors.positives_of(earlier)
        if not len(row_positives) or not len(earlier_positives):
            return len(row_positives) == len(earlier_positives)
        scores = positives.scores(
            row_positives, np.tile(earlier_positives, (len(row_positives), 1))
        )
        return bool((scores.max(axis=1) >= threshold).all())

    pairs = pairs_above(vectors.anchors.of(kept_rows), threshold, device)
    for later, group in groupby(pairs, key=itemgetter(0)):
        row = int(kept_rows[later])
        kept_others = (int(kept_rows[other]) for _, other in group if stays_kept[other])
        earlier = next((other for other in kept_others if same(row, other)), None)
        if earlier is not None:
            stays_kept[later] = False
            yield row, earlier


def pairs_above(
    vectors: JoinedVectors, threshold: float, device: str = "cpu"
) -> Iterator[tuple[int, int]]:
    """Yield (i, j) with j < i, in order, of all pairs with a cosine of `threshold` or more.

    Cosines of all pairs are computed in float32, block by block; near the threshold the exact cosine decides.
    """
    space = Space(vectors, vectors, device)
    lowest_product = threshold - 2 * space.slack if len(vectors) else threshold
    for first in range(0, len(vectors), _ROWS):
        last = min(first + _ROWS, len(vectors))
        blocks = []
        with full_precision():
            units = space.queries.units(slice(first, last))
            for column in range(0, last, _COLUMNS):
                other_units = space.documents.units(slice(column, min(column + _COLUMNS, last)))
                candidate_pairs = (units @ other_units.T >= lowest_product).nonzero().cpu().numpy()
                candidate_pairs += np.array([first, column])
                blocks.append(candidate_pairs[candidate_pairs[:, 1] < candidate_pairs[:, 0]])
        pairs = np.concatenate(blocks)
        exact = space.scores(pairs[:, 0], pairs[:, 1]) >= threshold
        pairs = pairs[exact]
        yield from map(tuple, pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].tolist())
