"""Vectors quantised to int8 or bits, or as they are, and the exact search among them, in numpy.

Codes are those of sentence-transformers' `quantize_embeddings`, so that a store filled by it is measured as
it is served. A search differs from its `semantic_search_faiss` in nothing but the order of equal scores.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from emberge.contracts import StoredForm
from emberge.encoding.text_search import BestDocuments
from emberge.errors import DataError
from emberge.files import UnsoundFileError, read_regular, replace_file, writing
from emberge.numerics import top_k
from emberge.wording import printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.float32]

# Numbers in memory at once: 64 MB of float64.
_CELLS = 8 << 20
_LEVELS = 255
# Bytes of a file of ranges, at most: of the widest vectors, several times.
_LONGEST = 4 << 20


@dataclass(frozen=True, eq=False)
class Int8Ranges:
    """The least and the greatest number of each dimension, float32 [d], between which int8 has 256 steps."""

    low: Rows
    high: Rows

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Int8Ranges:
        """Return the ranges of a sample of vectors [n, d].

        Raises:
            ValueError: if there are fewer than two vectors, or a number is not finite.
        """
        if len(rows) < 2:
            raise ValueError(f"ranges need two vectors or more, and there are {len(rows)}")
        low, high = (end.astype(np.float32) for end in (rows.min(0), rows.max(0)))
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ValueError("vectors with NaN or infinite numbers have no ranges")
        return cls(low, high)

    @classmethod
    def read(cls, path: Path, dimension: int) -> Int8Ranges:
        """Return the ranges in a file: an npz with `ranges` [2, d], or an npy of that array.

        The first row has the least number of each dimension, the second the greatest, as
        `quantize_embeddings(ranges=…)` of sentence-transformers takes them.

        Raises:
            DataError: if the file cannot be read, or has no such ranges of `dimension` numbers.
        """
        try:
            content = read_regular(path, limit=_LONGEST)
            loaded: Any = np.load(io.BytesIO(content), allow_pickle=False)
            table = np.asarray(loaded if isinstance(loaded, np.ndarray) else loaded["ranges"])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile, UnsoundFileError) as error:
            raise DataError(
                f"{path}: has no ranges of int8 ({printable(error, 200)}); give an npz with an array "
                "`ranges` of two rows, the least and the greatest number of each dimension"
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
        return cls(low, high)

    def equals(self, other: Int8Ranges) -> bool:
        """Return whether the other ranges are the same numbers."""
        return np.array_equal(self.low, other.low) and np.array_equal(self.high, other.high)

    def write(self, path: Path) -> None:
        """Write the ranges into an npz, as `read` takes them.

        Raises:
            UnwrittenError: if the disk is full or broken.
        """
        with writing(path, "the ranges"), replace_file(path) as side, side.open("wb") as file:
            np.savez(file, ranges=np.stack([self.low, self.high]))

    def encode(self, rows: NDArray[Any]) -> NDArray[np.int8]:
        """Return codes from -128 to 127 [n, d]; numbers outside the ranges have the nearest code."""
        steps = np.clip(np.floor((rows - self.low) / self._steps), 0, _LEVELS)
        codes: NDArray[np.int8] = (steps - 128).astype(np.int8)
        return codes

    def decode(self, codes: NDArray[np.int8], *, middle: bool = False) -> Rows:
        """Return the least number of each code's step, or the one in its `middle`, float32 [n, d]."""
        place = np.float32(128.5 if middle else 128)
        return (codes.astype(np.float32) + place) * self._steps + self.low

    @property
    def _steps(self) -> Rows:
        steps = (self.high - self.low) / _LEVELS
        return np.where(steps == 0, np.float32(1), steps)


@dataclass(frozen=True, eq=False)
class QuantisedVectors:
    """Vectors of documents in a `StoredForm`; `rows` are float32 or float16, int8 codes or packed bits.

    `dimension` is the number of dimensions that are stored, and `ranges` are those of int8. `again` are the
    vectors of a second look, if it takes others than `rows`.
    """

    form: StoredForm
    dimension: int
    rows: NDArray[Any]
    again: QuantisedVectors | None = None
    ranges: Int8Ranges | None = None

    @classmethod
    def store(
        cls, form: StoredForm, rows: NDArray[Any], ranges: Int8Ranges | None = None
    ) -> QuantisedVectors:
        """Return vectors [n, d], which have the form's size already, in its precision.

        Raises:
            ValueError: if the form needs ranges, and there are none.
        """
        if form.needs_ranges and ranges is None:
            raise ValueError(f"{form.label} needs the ranges of its dimensions")
        again = None
        if form.by is not None and form.by != form.precision:
            second = StoredForm(precision=form.by, queries="float32")
            again = cls.store(second, rows, ranges)
        return cls(form, rows.shape[1], _encode(form, rows, ranges), again, ranges)

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, places: NDArray[np.int64]) -> QuantisedVectors:
        """Return some of the vectors."""
        again = None if self.again is None else self.again.pick(places)
        return replace(self, rows=self.rows[places], again=again)

    def values(self) -> NDArray[Any]:
        """Return the vectors as they are compared, [n, d]: decoded numbers, codes, or signs (-1 and 1)."""
        if self.form.precision == "int8" and self.form.compares_codes:
            return self.rows.astype(np.float64)  # sums of products of codes are exact in it
        return self._decode()

    def search(self, queries: Rows, count: int) -> NDArray[np.int64]:
        """Return the places of the best `count` vectors for each query [queries, d], int64, best first.

        Equal scores keep the order of the vectors.
        """
        again = self.form.rescore or 0
        best = BestDocuments(len(queries), max(count, again))
        asked = self._prepare(queries)
        size = max(1, _CELLS // max(1, len(queries), self.dimension))
        for start in range(0, len(self), size):
            block = self.pick(np.arange(start, min(start + size, len(self))))
            best.add(asked @ block.values().T)
        places = best.places
        if again:
            first = self._look_again(queries, places[:, :again])
            places = np.concatenate([first, places[:, again:]], axis=1)
        return places[:, :count]

    def _prepare(self, queries: Rows) -> NDArray[Any]:
        """Return queries in the form in which they are compared with `values`."""
        if not self.form.compares_codes:
            return queries
        stored = replace(self, rows=_encode(self.form, queries, self.ranges), again=None)
        return stored.values()

    def _look_again(self, queries: Rows, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places [queries, n] by the scores of queries as they are."""
        stored = self.again or self
        size = max(1, _CELLS // max(1, places.shape[1] * self.dimension))
        ordered = np.empty_like(places)
        for start in range(0, len(places), size):
            part = slice(start, start + size)
            vectors = stored.pick(places[part].reshape(-1))._decode()
            vectors = vectors.reshape(*places[part].shape, self.dimension)
            scores = np.einsum("qd,qnd->qn", queries[part], vectors)
            order = top_k(scores, places.shape[1])
            ordered[part] = np.take_along_axis(places[part], order, 1)
        return ordered

    def _decode(self) -> Rows:
        precision = self.form.precision
        if precision == "int8":
            assert self.ranges is not None
            return self.ranges.decode(self.rows)
        if precision == "binary":
            bits = np.unpackbits(self.rows, axis=-1, count=self.dimension)
            return bits.astype(np.float32) * 2 - 1
        return self.rows.astype(np.float32, copy=False)


def _encode(form: StoredForm, rows: NDArray[Any], ranges: Int8Ranges | None) -> NDArray[Any]:
    if form.precision == "int8":
        assert ranges is not None
        return ranges.encode(rows)
    if form.precision == "binary":
        return np.packbits(rows > 0, axis=-1)
    return rows.astype(form.precision, copy=False)
