"""Distinct texts on disk, more than memory has room for."""

from __future__ import annotations

import mmap
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from emberge.hashes import text_keys
from numpy.typing import NDArray


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
