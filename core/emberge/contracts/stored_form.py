"""The form in which vectors are stored and compared: their size, their precision, and a second look."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from emberge.contracts.option import Count

Precision = Literal["float32", "float16", "int8", "binary"]

_BITS: dict[Precision, int] = {"float32": 32, "float16": 16, "int8": 8, "binary": 1}


@dataclass(frozen=True, kw_only=True)
class StoredForm:
    """Form of stored vectors and of the search among them: `int8`, or `{precision: binary, rescore: 40}`.

    `int8` has 256 steps between the least and the greatest number of each dimension, which a sample of
    documents gives. `binary` has the signs of numbers, and is compared by Hamming distance; documents at the
    same distance are in an order that depends on nothing but their names.
    """

    precision: Precision = "float32"
    """Type of the stored numbers."""
    queries: Literal["float32", "stored"] | None = None
    """`float32` multiplies a query with the decoded documents. `stored` encodes it like them: codes are
    compared by dot product (`int8`), bits by Hamming distance (`binary`). By default `stored` for `binary`,
    and `float32` for all else."""
    rescore: Count | None = None
    """Number of documents at the head of a search that are scored again with the float32 query."""
    by: Literal["binary", "int8", "float32"] | None = None
    """Vectors that they are scored again with: by default those that were searched, else others that are
    stored beside them."""
    size: Count | None = None
    """Number of leading dimensions to store, scaled to length one; by default all."""

    @property
    def compares_codes(self) -> bool:
        """True if queries are brought into the form of the documents."""
        return self.precision in ("int8", "binary") and (
            self.queries == "stored" or (self.queries is None and self.precision == "binary")
        )

    @property
    def label(self) -> str:
        """The name in tables: `256`, `int8`, `256 binary, 40 by int8`."""
        words = [] if self.size is None else [str(self.size)]
        if self.precision != "float32" or self.size is None:
            words.append(self.precision)
        if self.precision == "int8" and self.compares_codes:
            words.append("codes")
        elif self.precision == "binary" and not self.compares_codes:
            words.append("by float32")
        again = (
            ""
            if self.rescore is None
            else f", {self.rescore} {f'by {self.by}' if self.by else 'again'}"
        )
        return " ".join(words) + again

    @property
    def is_float32(self) -> bool:
        """True for plain float32 vectors of any size."""
        return self.precision == "float32" and self.rescore is None

    @property
    def needs_ranges(self) -> bool:
        """True if the ranges of dimensions are needed, as for int8."""
        return "int8" in (self.precision, self.by)

    def count_bytes(self, dimension: int) -> int:
        """Return the bytes of a stored vector of a model with embeddings of `dimension` numbers."""
        size = dimension if self.size is None else min(self.size, dimension)
        stored = {self.precision} | ({self.by} if self.by is not None else set())
        return sum(math.ceil(size * _BITS[one] / 8) for one in stored)

    def faults(self) -> Iterator[str]:
        """Yield reasons why options of the form contradict each other."""
        if self.queries == "stored" and self.precision not in ("int8", "binary"):
            yield f"queries: stored is for int8 and binary, not for {self.precision}"
        if self.by is not None and self.rescore is None:
            yield "`by` says by which vectors documents are ordered again; say how many, as `rescore: 40`"
        if (
            self.rescore is not None
            and not self.compares_codes
            and self.by in (None, self.precision)
        ):
            yield (
                f"rescore changes nothing: {self.precision} is already compared with queries as they are; "
                "take queries: stored, or leave it out"
            )
