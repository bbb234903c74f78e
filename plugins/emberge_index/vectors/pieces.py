"""The pieces of a file of vectors, in their order: bytes that stay, bytes that are new, and rows to map.

A format is read into such a list once, from headers alone. The rows of a file are then rewritten by one loop,
whatever its format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from emberge import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["BLOCK", "FileRows", "Kept", "New", "Piece", "Plan", "RowSource", "require_floats"]

# Bytes of vectors that are mapped at once. It decides the shape of a product and so perhaps its last bit:
# it depends on no machine.
BLOCK = 4 << 20


class RowSource(Protocol):
    """Rows of vectors, read in order or from any row on."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    @property
    def dimension(self) -> int:
        """Size of a vector."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Numbers of a vector, which stay the same."""
        ...

    def blocks(self, first: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield rows from `first` on, a multiple of `size`, in blocks of `size` rows."""
        ...

    def name_of(self, row: int) -> str:
        """Return the words for a row in a message: its number from 0, and its id where the file has one."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of the input that stay as they are."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class New:
    """Bytes in place of others of the input, such as a header."""

    data: bytes


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows that lie in a file one after the other."""

    path: Path
    start: int
    rows: int
    dimension: int
    dtype: Any

    def blocks(self, first: int, size: int) -> Iterator[NDArray[Any]]:
        import numpy as np

        with self.path.open("rb", buffering=0) as file:
            file.seek(self.start + first * self.dimension * self.dtype.itemsize)
            for start in range(first, self.rows, size):
                count = min(size, self.rows - start)
                block = np.empty((count, self.dimension), self.dtype)
                _read_into(file, block)
                yield block

    def name_of(self, row: int) -> str:
        return f"{row:,}"


def _read_into(file: Any, block: NDArray[Any]) -> None:
    view = memoryview(block.data).cast("B")
    done = 0
    while done < len(view):
        got = file.readinto(view[done:])
        if not got:
            raise DataError(f"{file.name}: ends in the middle of its vectors; copy it again")
        done += got


Piece = Kept | New | RowSource


@dataclass(frozen=True, slots=True)
class Plan:
    """The pieces of a file, its rows among them, and what the file itself records about their space."""

    path: Path
    pieces: tuple[Piece, ...]
    rows: RowSource
    fingerprint: str | None = None
    """Fingerprint of the model that the file names."""
    side: str | None = None
    """Side of a search that the file names: documents or queries."""


def require_floats(path: Path, dtype: Any, what: str = "vectors") -> None:
    """Refuse numbers that are rounded to codes, which no map can rewrite.

    Raises:
        DataError: with what can be done instead.
    """
    if dtype.kind == "f" and dtype.itemsize in (2, 4, 8):
        return
    raise DataError(
        f"{path}: its {what} are {dtype.name}, codes of rounded numbers, which cannot be rewritten; "
        "translate the float vectors that they were made of and quantise those again, or leave the index as "
        "it is and let a step `bridge` fit the new model's queries to it"
    )
