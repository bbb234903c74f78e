"""Distinct texts on disk, more than memory has room for; and the rows of training sets that have them."""

from __future__ import annotations

import mmap
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
from emberge.hashes import hash_texts
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
                keys += hash_texts((text,))
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
    """Normalised texts of the rows of all sets, each once, on disk; rows are numbered over all sets.

    A row has its own texts, which are its anchor and positives, and then its negatives. `starts` has the
    number of the first row of each set.
    """

    def __init__(self, datasets: Sequence[StoredDataset], folder: Path) -> None:
        first = np.cumsum([0, *map(len, datasets)])
        self.starts = {
            dataset.info.name: int(row) for dataset, row in zip(datasets, first[:-1], strict=True)
        }
        self.set_of_row = np.repeat(np.arange(len(datasets)), np.diff(first))
        counts = array("q")
        self.distinct = DistinctTexts(map(normalise, read_row_texts(datasets, counts)), folder)
        sizes = np.asarray(counts, np.int64).reshape(-1, 3)
        self._own = sizes[:, :2].sum(axis=1)
        self._counts = sizes.sum(axis=1)
        self._ends = np.cumsum(self._counts)

    def __len__(self) -> int:
        return len(self._ends)

    def list_own_texts(self) -> tuple[Places, Places]:
        """Return (rows, texts) of all anchors and positives."""
        rows = np.repeat(np.arange(len(self)), self._counts)
        number = np.arange(len(rows)) - np.repeat(self._ends - self._counts, self._counts)
        is_own = number < self._own[rows]
        return rows[is_own], self.distinct.places[is_own]

    def list_texts(self, row: int) -> tuple[list[int], list[int]]:
        """Return the indices of a row's texts: (anchor and positives, negatives)."""
        end = int(self._ends[row])
        places = self.distinct.places[end - int(self._counts[row]) : end].tolist()
        count = int(self._own[row])
        return places[:count], places[count:]


def read_row_texts(datasets: Iterable[StoredDataset], counts: array[int]) -> Iterator[str]:
    """Yield the texts of all rows: anchor, positives, negatives; append these three counts of each row.

    If a set draws positives and negatives from other rows, its rows have the anchor alone.
    """
    for dataset in datasets:
        for row in range(len(dataset)):
            example = dataset[row]
            positives = () if dataset.draws_positives else example.positives
            negatives = () if dataset.draws_positives else example.negatives
            counts.extend((1, len(positives), len(negatives)))
            yield from (example.anchor, *positives, *negatives)
