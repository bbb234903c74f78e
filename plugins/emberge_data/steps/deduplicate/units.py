"""Units of comparison: the parts of a row that are searched for in other rows."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge_data.steps.text_similarity import normalise

if TYPE_CHECKING:
    import numpy as np
    from emberge import Example
    from emberge.data import StoredDataset
    from numpy.typing import NDArray


Of = Literal["rows", "anchors", "texts"]


@dataclass(frozen=True, slots=True)
class ComparedTexts:
    """Normalised texts of a row. Copies have equal tags, and their texts are compared in order."""

    tag: str
    parts: tuple[str, ...]


def units_of(
    dataset: StoredDataset, example: Example, of: Of, tag: str = ""
) -> list[ComparedTexts]:
    """Return the units of a row; the row is a copy if any of its units is a copy.

    - `rows`: anchor and positives, each compared with the same part of the other row; in a symmetric set in
      either order. A row with a label is compared by its anchor alone, with rows of the same label, as its
      positives are other rows of that label.
    - `anchors`: the anchor.
    - `texts`: the anchor, and each positive that the row itself has, each as a unit of its own.
    """
    anchor = normalise(example.anchor)
    if of == "anchors":
        return [ComparedTexts(tag, (anchor,))]
    positives = () if dataset.draws else example.positives
    if of == "texts":
        texts = dict.fromkeys([anchor, *map(normalise, positives)])
        return [ComparedTexts(tag, (text,)) for text in texts]
    if example.label is not None or not positives:
        return [ComparedTexts(f"{tag}\0{example.label}", (anchor,))]
    parts = [anchor, "\n".join(sorted(map(normalise, positives)))]
    return [ComparedTexts(tag, tuple(sorted(parts) if dataset.symmetric else parts))]


class RowsInOrder:
    """Rows of all sets under one numbering, in the order in which the first copy is kept."""

    def __init__(self, datasets: Sequence[StoredDataset], of: Of, *, across: bool) -> None:
        self.datasets = datasets
        self._of = of
        self._across = across
        self.starts = [0, *itertools.accumulate(len(dataset) for dataset in datasets)]
        self.units = functools.lru_cache(maxsize=4096)(self._read_units)

    def __len__(self) -> int:
        return self.starts[-1]

    def place(self, row: int) -> tuple[StoredDataset, int]:
        """Return the set of a row, and the row's index in that set."""
        number = bisect.bisect_right(self.starts, row) - 1
        return self.datasets[number], row - self.starts[number]

    def _read_units(self, row: int) -> list[ComparedTexts]:
        dataset, number = self.place(row)
        tag = "" if self._across else dataset.info.name
        return units_of(dataset, dataset[number], self._of, tag)

    def every_unit(self, is_kept: NDArray[np.bool_]) -> Iterator[tuple[int, ComparedTexts]]:
        """Yield (row, unit) of all kept rows."""
        for row in is_kept.nonzero()[0].tolist():
            yield from ((row, unit) for unit in self._read_units(row))
