"""Distinct normalised texts of training sets, and the rows that have them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from emberge_data.distinct_texts import DistinctTexts
from emberge_data.steps.text_similarity import normalise

if TYPE_CHECKING:
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    Places = NDArray[np.int64]


class RowTexts:
    """Texts of the rows of all sets, each once, on disk; rows are numbered over all sets.

    A row has its own texts, which are its anchor and positives, and then its negatives. If a set draws
    positives and negatives from other rows, its rows have the anchor alone. `starts` has the number of the
    first row of each set.
    """

    def __init__(self, datasets: Sequence[StoredDataset], folder: Path) -> None:
        first = np.cumsum([0, *map(len, datasets)])
        self.starts = {
            dataset.info.name: int(row) for dataset, row in zip(datasets, first[:-1], strict=True)
        }
        self.set_of_row = np.repeat(np.arange(len(datasets)), np.diff(first))
        own_counts, ends = array("q"), array("q")
        self.distinct = DistinctTexts(_read_texts(datasets, own_counts, ends), folder)
        self._ends = np.frombuffer(ends, np.int64)
        self._counts = np.diff(self._ends, prepend=0)
        self._own = np.frombuffer(own_counts, np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def own(self) -> tuple[Places, Places]:
        """Return (rows, texts) of all anchors and positives."""
        rows = np.repeat(np.arange(len(self)), self._counts)
        number = np.arange(len(rows)) - np.repeat(self._ends - self._counts, self._counts)
        is_own = number < self._own[rows]
        return rows[is_own], self.distinct.places[is_own]

    def of_row(self, row: int) -> tuple[list[int], list[int]]:
        """Return the indices of a row's texts: (anchor and positives, negatives)."""
        end = int(self._ends[row])
        places = self.distinct.places[end - int(self._counts[row]) : end].tolist()
        count = int(self._own[row])
        return places[:count], places[count:]


def _read_texts(
    datasets: Sequence[StoredDataset], own_counts: array[int], ends: array[int]
) -> Iterator[str]:
    """Yield all texts; append each row's number of anchors and positives, and the end of its texts."""
    for dataset in datasets:
        for row in range(len(dataset)):
            example = dataset[row]
            texts = [example.anchor, *(() if dataset.draws else example.positives)]
            own_counts.append(len(texts))
            texts += () if dataset.draws else example.negatives
            ends.append(len(texts) + (ends[-1] if ends else 0))
            yield from map(normalise, texts)
