"""Codes in files of vectors: int8 that is decoded while it is read, and int8 or bits that are written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from emberge_index.vectors.pieces import VectorSource

if TYPE_CHECKING:
    import numpy as np
    from emberge.encoding import Int8Ranges
    from numpy.typing import NDArray

CodeKind = Literal["int8", "binary"]
RANGES_SUFFIX = ".ranges.npz"


@dataclass(frozen=True, eq=False)
class CodedRows:
    """Rows of int8 codes as float32 vectors: each number is the middle of its code's step."""

    codes: VectorSource
    ranges: Int8Ranges

    @property
    def rows(self) -> int:
        return self.codes.rows

    @property
    def dimension(self) -> int:
        return self.codes.dimension

    @property
    def dtype(self) -> np.dtype[Any]:
        import numpy as np

        return np.dtype(np.float32)

    def __repr__(self) -> str:
        return f"CodedRows({self.codes!r}, {_hash_ranges(self.ranges)})"

    def blocks(self, first: int, size: int) -> Iterator[NDArray[Any]]:
        for block in self.codes.blocks(first, size):
            yield self.ranges.decode(block, middle=True)

    def name_of(self, row: int) -> str:
        return self.codes.name_of(row)

    def numbers_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.codes.numbers_of(rows)


@dataclass(frozen=True, eq=False)
class Codec:
    """The form of new vectors: int8 codes by `ranges`, or the signs of numbers, eight in a byte."""

    kind: CodeKind
    ranges: Int8Ranges | None = None

    def __repr__(self) -> str:
        return self.kind if self.ranges is None else f"{self.kind} {_hash_ranges(self.ranges)}"

    def encode(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return vectors [n, d] in this form."""
        import numpy as np

        if self.kind == "binary":
            return np.packbits(rows > 0, axis=-1)
        assert self.ranges is not None
        return self.ranges.encode(rows.astype(np.float32, copy=False))

    def round(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return vectors [n, d] as they are compared in this form: decoded codes, or signs (-1 and 1)."""
        import numpy as np

        if self.kind == "binary":
            return np.where(rows > 0, np.float32(1), np.float32(-1))
        assert self.ranges is not None
        return self.ranges.decode(self.encode(rows), middle=True)


def find_type_and_width(
    kind: CodeKind | None, dtype: np.dtype[Any], dimension: int
) -> tuple[np.dtype[Any], int]:
    """Return the number type of new vectors, and how many of them a vector of `dimension` numbers has."""
    import numpy as np

    if kind is None:
        return dtype, dimension
    return (
        (np.dtype(np.int8), dimension)
        if kind == "int8"
        else (np.dtype(np.uint8), -(-dimension // 8))
    )


def locate_ranges(out: Path) -> Path:
    """Return the place of the ranges beside a file of int8 vectors."""
    return out.with_name(out.name + RANGES_SUFFIX)


def _hash_ranges(ranges: Int8Ranges) -> str:
    return hashlib.sha256(ranges.low.tobytes() + ranges.high.tobytes()).hexdigest()
