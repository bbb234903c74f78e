"""Distinct texts on disk, more than memory has room for; and the rows of training sets that have them."""

from __future__ import annotations

import mmap
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
from emberge.hashes import text_keys
from numpy.typing import NDArray

from emberge_data.steps.text_similarity import normalise

if TYPE_CHECKING:
    from emberge.data import StoredDataset

    Places = NDArray[np.int64]


class DistinctTexts(Sequence[str]):
    """Distinct texts in the order of their first occurrence; `places` [n] has each streamed text's position.

    The texts are in an unnamed file, which is deleted with the object. Each streamed text needs 32 bytes of
    memory.
    """

    def __init__(self, texts: Iterable[str], folder: Path) -> None:
        ends, keys = array("q"), bytearray()
        with tempfile.TemporaryFile(dir=folder) as file:
            for text in texts:
                file.write(text.encode("utf-8", "surrogatepass"))
                ends.append(file.tell())
                keys += text_keys((text,))
            file.flush()
            size = file.tell()
            # The memory map keeps the file's content available after the file is closed.
            self._bytes = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
        stops = np.frombuffer(ends, np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), stops])[:-1]
        _, first, inverse = np.unique(
            np.frombuffer(bytes(keys), "V16"), return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self.places: NDArray[np.int64] = rank[inverse]
        self._starts, self._stops = starts[first[order]], stops[first[order]]

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._bytes[self._starts[index] : self._stops[index]].decode(
            "utf-8", "surrogatepass"
        )


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
