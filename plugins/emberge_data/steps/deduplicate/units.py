"""Rows of all sets under one numbering, and the texts of a row that are compared with those of other rows."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge_data.steps.text_similarity import normalise

if TYPE_CHECKING:
    import numpy as np
    from emberge import Example
    from emberge.data import StoredDataset
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ComparedTexts:
    """Normalised texts of a row. Copies have equal tags, and their texts are compared in order."""

    tag: str
    parts: tuple[str, ...]


def unit_of(dataset: StoredDataset, example: Example) -> ComparedTexts:
    """Return what is compared of a row: anchor and positives, each with the same part of the other row.

    In a symmetric set they are compared in either order. A row with a label is compared by its anchor alone,
    with rows of the same label, as its positives are other rows of that label.
    """
    anchor = normalise(example.anchor)
    positives = () if dataset.draws else example.positives
    if example.label is not None or not positives:
        return ComparedTexts(f"\0{example.label}", (anchor,))
    parts = [anchor, "\n".join(sorted(map(normalise, positives)))]
    return ComparedTexts("", tuple(sorted(parts) if dataset.symmetric else parts))


class RowsInOrder:
    """Rows of all sets under one numbering, in the order in which the first copy is kept."""

    def __init__(self, datasets: Sequence[StoredDataset]) -> None:
        self.datasets = datasets
        self.starts = [0, *itertools.accumulate(len(dataset) for dataset in datasets)]
        self.unit = functools.lru_cache(maxsize=4096)(self._read_unit)

    def __len__(self) -> int:
        return self.starts[-1]

    def place(self, row: int) -> tuple[StoredDataset, int]:
        """Return the set of a row, and the row's index in that set."""
        number = bisect.bisect_right(self.starts, row) - 1
        return self.datasets[number], row - self.starts[number]

    def _read_unit(self, row: int) -> ComparedTexts:
        dataset, number = self.place(row)
        return unit_of(dataset, dataset[number])

    def every_unit(self, is_kept: NDArray[np.bool_]) -> Iterator[tuple[int, ComparedTexts]]:
        """Yield (row, unit) of all kept rows."""
        return ((row, self._read_unit(row)) for row in is_kept.nonzero()[0].tolist())
