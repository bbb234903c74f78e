"""Vectors of the rows of all sets: of each anchor, and of its positives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from emberge import Workspace
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.search.space import StoredVectors
    from emberge_data.steps.teacher import OpenTeacher, Teacher

    Places = NDArray[np.int64]


class JoinedVectors:
    """Vectors of several sets under one numbering: the `places[i]`-th of the set `parts[i]`."""

    def __init__(self, sets: Sequence[StoredVectors], parts: Places, places: Places) -> None:
        self._sets = sets
        self._parts = parts
        self._places = places

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, numbers: Any) -> NDArray[np.float32]:
        parts, places = self._parts[numbers], self._places[numbers]
        dimension = self._sets[int(parts[0]) if len(parts) else 0][0:1].shape[1]
        found = np.empty((len(parts), dimension), np.float32)
        for part in np.unique(parts).tolist():
            here = parts == part
            found[here] = self._sets[part][places[here]]
        return found

    def of(self, numbers: Places) -> JoinedVectors:
        """Return the vectors of these numbers, numbered anew."""
        return JoinedVectors(self._sets, self._parts[numbers], self._places[numbers])


@dataclass(frozen=True)
class RowVectors:
    """Vectors of rows, which are numbered over all sets; `ends` [rows] is where a row's positives end."""

    anchors: JoinedVectors
    positives: JoinedVectors
    ends: Places

    def positives_of(self, row: int) -> Places:
        """Return the numbers of a row's positives."""
        return np.arange(self.ends[row - 1] if row else 0, self.ends[row])


def embed_rows(
    datasets: Sequence[StoredDataset], teacher: Teacher, workspace: Workspace, *, positives: bool
) -> RowVectors:
    """Return the vectors of all rows, of positives only if they are asked for; every rank does its share."""
    with teacher.opened(workspace) as opened:
        anchors = [_anchors(dataset, opened, workspace) for dataset in datasets]
        others = [_positives(dataset, opened, workspace) for dataset in datasets if positives]
    counts = [count for *_, each in others for count in each]
    return RowVectors(
        _joined(anchors),
        _joined([(vectors, places) for vectors, places, _ in others]),
        np.cumsum(np.array(counts or [0] * sum(map(len, datasets)), dtype=np.int64)),
    )


def _joined(sets: Sequence[tuple[StoredVectors, Places]]) -> JoinedVectors:
    none = np.zeros(0, np.int64)
    parts = [np.full(len(places), number) for number, (_, places) in enumerate(sets)]
    return JoinedVectors(
        [vectors for vectors, _ in sets],
        np.concatenate([none, *parts]),
        np.concatenate([none, *(places for _, places in sets)]),
    )


def _anchors(
    dataset: StoredDataset, teacher: OpenTeacher, workspace: Workspace
) -> tuple[StoredVectors, Places]:
    from emberge.data import DistinctTexts

    rows = range(len(dataset))
    texts = DistinctTexts((dataset[row].anchor for row in rows), workspace.work)
    return teacher.queries(texts, dataset), texts.places


def _positives(
    dataset: StoredDataset, teacher: OpenTeacher, workspace: Workspace
) -> tuple[StoredVectors, Places, list[int]]:
    """Return vectors of positives, none for rows whose positives are other rows of their label."""
    from emberge.data import DistinctTexts

    counts: list[int] = []

    def texts() -> Iterator[str]:
        for row in range(len(dataset)):
            example = dataset[row]
            found = example.positives if example.label is None else ()
            counts.append(len(found))
            yield from found

    distinct = DistinctTexts(texts(), workspace.work)
    return teacher.documents(distinct, dataset), distinct.places, counts
