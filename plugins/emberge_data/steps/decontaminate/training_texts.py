"""Distinct normalised texts of training sets, and the rows that have them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from emberge.engine import DistinctTexts

from emberge_data.steps.near.normalise import normalise

if TYPE_CHECKING:
    from emberge.engine import StoredDataset
    from numpy.typing import NDArray

__all__ = ["TrainingTexts"]


class TrainingTexts:
    """Texts of all rows, each once, on disk.

    A row has its anchor and positives, then its negatives; of a set whose positives and negatives are drawn
    from other rows, the anchor alone.
    """

    def __init__(self, datasets: Sequence[StoredDataset], folder: Path) -> None:
        self.starts = dict(
            zip(
                [one.info.name for one in datasets],
                np.cumsum([0, *map(len, datasets)]).tolist(),
                strict=False,
            )
        )
        self._own, self._ends = array("q"), array("q")
        self.distinct = DistinctTexts(self._read(datasets), folder)

    def _read(self, datasets: Sequence[StoredDataset]) -> Iterator[str]:
        end = 0
        for dataset in datasets:
            for row in range(len(dataset)):
                example = dataset[row]
                own = [example.anchor, *(() if dataset.draws else example.positives)]
                negatives = () if dataset.draws else example.negatives
                end += len(own) + len(negatives)
                self._own.append(len(own))
                self._ends.append(end)
                yield from map(normalise, own)
                yield from map(normalise, negatives)

    def rows_with(self, texts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows, numbered over all sets, that have any of these distinct texts."""
        wanted = np.zeros(len(self.distinct), dtype=bool)
        wanted[texts] = True
        given = np.flatnonzero(wanted[self.distinct.places])
        return np.unique(np.searchsorted(np.frombuffer(self._ends, np.int64), given, side="right"))

    def of_row(self, row: int) -> tuple[list[int], list[int]]:
        """Return the distinct texts of a row by place: those of anchor and positives, those of negatives."""
        start = self._ends[row - 1] if row else 0
        places = self.distinct.places[start : self._ends[row]].tolist()
        return places[: self._own[row]], places[self._own[row] :]
