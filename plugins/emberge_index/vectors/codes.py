"""Codes in files of vectors: int8 that is decoded while it is read, and int8 or bits that are written."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from emberge import DataError
from emberge.files import open_regular, replace_file, writing
from emberge.wording import printable

from emberge_index.vectors.pieces import VectorSource, block_rows

if TYPE_CHECKING:
    import numpy as np
    from emberge.encoding import Int8Ranges
    from numpy.typing import NDArray

    from emberge_index.vectors.mapper import Mapper

CodeKind = Literal["int8", "binary"]
RANGES_SUFFIX = ".ranges.npz"
# Bytes of a file of ranges, at most: of the widest vectors, twice.
_LONGEST = 4 << 20
# Vectors from which the ranges of a new file are taken, and the places in the file that they come from.
_SAMPLE, _PLACES = 10_000, 16


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


def read_ranges(path: Path, dimension: int) -> Int8Ranges:
    """Return the ranges of int8 in a file: an npz with `ranges` [2, d], or an npy of that array.

    The first row has the least number of each dimension, the second the greatest, as
    `quantize_embeddings(ranges=…)` of sentence-transformers takes them.

    Raises:
        DataError: if the file cannot be read, or has no such ranges of `dimension` numbers.
    """
    import numpy as np
    from emberge.encoding import Int8Ranges

    try:
        with open_regular(path) as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise ValueError(f"it has more than {_LONGEST:,} bytes")
        loaded: Any = np.load(io.BytesIO(content), allow_pickle=False)
        table = np.asarray(loaded if isinstance(loaded, np.ndarray) else loaded["ranges"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: has no ranges of int8 ({printable(error, 200)}); give an npz with an array `ranges` of "
            "two rows, the least and the greatest number of each dimension"
        ) from error
    if table.dtype.kind != "f" or table.shape != (2, dimension):
        raise DataError(
            f"{path}: its ranges are {table.dtype.name} {table.shape}, and the vectors need two rows of "
            f"{dimension:,} floats; give those of this model"
        )
    low, high = table.astype(np.float32)
    if not (np.isfinite(table).all() and (low <= high).all()):
        raise DataError(
            f"{path}: has ranges that are not finite, or whose least number is above the greatest"
        )
    return Int8Ranges(low, high)


def write_ranges(out: Path, ranges: Int8Ranges) -> Path:
    """Write the ranges of a file of int8 vectors beside it, and return their path."""
    import numpy as np

    path = locate_ranges(out)
    with writing(path, "the ranges"), replace_file(path) as side, side.open("wb") as file:
        np.savez(file, ranges=np.stack([ranges.low, ranges.high]))
    return path


def locate_ranges(out: Path) -> Path:
    """Return the place of the ranges beside a file of int8 vectors."""
    return out.with_name(out.name + RANGES_SUFFIX)


def measure_ranges(rows: VectorSource, mapper: Mapper) -> Int8Ranges:
    """Return the ranges of mapped vectors, from at most 10,000 rows of evenly spaced parts of a file.

    Raises:
        DataError: if there are fewer than two vectors, or mapped ones are not finite.
    """
    import numpy as np
    from emberge.encoding import Int8Ranges

    size = min(block_rows(rows.dimension, mapper.dimension), max(1, _SAMPLE // _PLACES))
    count = -(-rows.rows // size)
    places = sorted({int(place) * size for place in np.linspace(0, max(0, count - 1), _PLACES)})
    blocks = [next(iter(rows.blocks(place, size)), None) for place in places]
    mapped = [mapper(block).vectors for block in blocks if block is not None]
    try:
        return Int8Ranges.of(np.concatenate(mapped) if mapped else np.zeros((0, mapper.dimension)))
    except ValueError as error:
        raise DataError(f"ranges for int8: {error}; give some by --new-ranges") from error


def _hash_ranges(ranges: Int8Ranges) -> str:
    import hashlib

    return hashlib.sha256(ranges.low.tobytes() + ranges.high.tobytes()).hexdigest()
