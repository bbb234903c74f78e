"""Pieces of a file of vectors in order: unchanged bytes, new bytes, and rows to map.

Each format is read into a list of pieces, from headers alone. Then one loop rewrites the rows of any format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from emberge import DataError
from emberge.wording import count_noun, join_some

from emberge_index.translation import TranslationHeader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Bytes of vectors that are mapped at once. It decides the shape of a product and so perhaps its last bit:
# it depends on no machine.
BLOCK = 4 << 20
# Most numbers of a vector; models have some thousands.
WIDEST = 1 << 16
# Rows that are not finite and named in an error.
SHOWN = 10


class VectorSource(Protocol):
    """Source of rows of vectors, read in order from any row."""

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
        """Number type of the vectors."""
        ...

    def blocks(self, first: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield rows from `first` on, a multiple of `size`, in blocks of `size` rows."""
        ...

    def name_of(self, row: int) -> str:
        """Return a row's name for messages: its number from 0, and its id if the file has ids."""
        ...

    def numbers_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers by which a reader of the file finds rows: places from 0, or ids."""
        ...


@dataclass(frozen=True, slots=True)
class KeptBytes:
    """Range of the input's bytes that is copied unchanged."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class NewBytes:
    """Bytes that replace others of the input, such as a header."""

    data: bytes


@dataclass(frozen=True, slots=True)
class FileRows:
    """Consecutive rows of a file."""

    path: Path
    start: int
    rows: int
    dimension: int
    dtype: Any

    def __post_init__(self) -> None:
        """Check that the file has these rows before memory is allocated for them.

        Raises:
            DataError: if the header claims more rows than the file has, or vectors of size 0.
        """
        require_width(self.path, self.dimension)
        size = os.path.getsize(self.path)
        end = self.start + self.rows * self.dimension * self.dtype.itemsize
        if self.rows < 0 or not 0 <= self.start <= end <= size:
            raise DataError(
                f"{self.path}: has {size:,} bytes, and its header claims {self.rows:,} vectors of "
                f"{self.dimension:,} numbers, to byte {end:,}; copy it again"
            )

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

    def numbers_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows


def _read_into(file: Any, block: NDArray[Any]) -> None:
    view = memoryview(block.data).cast("B")
    bytes_read = 0
    while bytes_read < len(view):
        chunk_size = file.readinto(view[bytes_read:])
        if not chunk_size:
            raise DataError(f"{file.name}: ends in the middle of its vectors; copy it again")
        bytes_read += chunk_size


Piece = KeptBytes | NewBytes | VectorSource


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """Plan to rewrite a file: its pieces, its rows, and the model and side that the file names.

    `finish` writes the file from mapped vectors [n, k], if the pieces are only the vectors of a file that is
    built as a whole.
    """

    path: Path
    pieces: tuple[Piece, ...]
    rows: VectorSource
    fingerprint: str | None = None
    """Fingerprint of the model that the file names."""
    side: str | None = None
    """Side of a search that the file names: documents or queries."""
    finish: Callable[[NDArray[Any], Path], None] | None = None
    kind: Literal["int8", "binary"] | None = None
    """Form of the new vectors; by default floats."""


def block_rows(*dimensions: int) -> int:
    """Return the number of rows of a block, computed from the largest of the dimensions."""
    return max(64, BLOCK // (4 * max(dimensions)))


def require_width(path: Path, dimension: int) -> None:
    """Refuse vectors of a size that no model has.

    Raises:
        DataError: if the size is 0 or above `WIDEST`.
    """
    if not 1 <= dimension <= WIDEST:
        raise DataError(
            f"{path}: its vectors have {dimension:,} numbers each, and those of models have 1 to {WIDEST:,}; "
            "write it again"
        )


def require_finite(path: Path, rows: VectorSource, size: int, first: int = 0) -> None:
    """Read the rows from `first` on in blocks, and refuse rows that are not finite.

    Raises:
        DataError: if there are; the message counts them and names the first ones by number and id.
    """
    import numpy as np

    bad_rows: list[int] = []
    for block in rows.blocks(first, size):
        with np.errstate(invalid="ignore"):
            bad_rows += (first + np.flatnonzero(~np.isfinite(block).all(axis=1))).tolist()
        first += len(block)
    if bad_rows:
        row_names = join_some([rows.name_of(row) for row in bad_rows[:SHOWN]], SHOWN)
        remainder_note = f" and {len(bad_rows) - SHOWN:,} more" if len(bad_rows) > SHOWN else ""
        raise DataError(
            f"{path}: {count_noun(len(bad_rows), 'row')} not finite (NaN or infinite values), counted "
            f"from 0: {row_names}{remainder_note}; embed their texts again or remove them"
        )


def require_floats(path: Path, dtype: Any, what: str = "vectors") -> None:
    """Refuse vectors that are quantised to integer codes: a translation needs floating-point numbers.

    Raises:
        DataError: if they are; the message has the remedy.
    """
    if dtype.kind == "f" and dtype.itemsize in (2, 4, 8):
        return
    codes = "codes of rounded numbers"
    if dtype.name == "int8":
        codes += ", which are rewritten by the ranges that they were made with (--ranges)"
    elif dtype.name == "uint8":
        codes = (
            "bits, or codes whose steps are not known, which cannot be rewritten (`refresh` reads bits "
            "beside their vectors: --bits)"
        )
    else:
        codes += ", which cannot be rewritten"
    raise DataError(
        f"{path}: its {what} are {dtype.name}, {codes}; translate the float vectors that they were made of "
        "and quantise those again (--as binary), or leave the index as it is and let a step `bridge` fit the "
        "new model's queries to it"
    )


MARK = "emberge.vectors"
"""Key of the mark among a safetensors file's metadata or a parquet file's schema metadata."""


def mark_of(header: TranslationHeader) -> str:
    """Return the mark (model fingerprint and side) for vectors that a translation writes."""
    return json.dumps(
        {
            "model": header.target.name,
            "fingerprint": header.target.fingerprint,
            "side": header.side,
            "translated_from": header.source.fingerprint,
        },
        sort_keys=True,
    )


def read_mark(text: str | bytes | None) -> tuple[str | None, str | None]:
    """Return the fingerprint and the side that a mark names; None for a missing part."""
    try:
        return read_mark_values(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return None, None


def read_mark_values(mark: Any) -> tuple[str | None, str | None]:
    """Return the fingerprint and the side in a parsed mark; None for a part that is missing or no text."""
    values = mark if isinstance(mark, dict) else {}
    fingerprint, side = (
        value if isinstance(value := values.get(name), str) else None
        for name in ("fingerprint", "side")
    )
    return fingerprint, side
