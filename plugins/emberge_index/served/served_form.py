"""The form in which a server gives vectors, found by comparing them with a model's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberge.numerics import unit_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[Any]

ServedPrecision = Literal["float", "int8", "bits", "signs"]
# Distance of a length from the one that it should have, as a share of it: that of vectors decoded from int8.
_ROUNDED = 5e-2
_BITS_OF_BYTE = 8


@dataclass(frozen=True)
class ServedForm:
    """The size, precision and length of a server's vectors.

    `scaled` says whether they have length one although the model's have not (True), have other lengths than
    the model's (False), or are as the model gives them (None).
    """

    size: int
    precision: ServedPrecision
    scaled: bool | None = None


def find_precision(served: Rows, dimension: int) -> ServedPrecision:
    """Return the precision of vectors [n, k] of a model with embeddings of `dimension` numbers."""
    import numpy as np

    if not (served == np.rint(served)).all() or not served.any():
        return "float"
    low, high = float(served.min()), float(served.max())
    if low >= -1 and high <= 1:
        return "signs"
    is_byte = low >= -128 and high <= 255
    if is_byte and served.shape[1] * _BITS_OF_BYTE <= dimension + _BITS_OF_BYTE - 1:
        return "bits"
    return "int8" if is_byte else "float"


def measure_form(served: Rows, own: Rows) -> tuple[ServedForm, Rows]:
    """Return the form of a server's vectors, and their distances from the model's vectors of the texts [n].

    A distance is that of two vectors of length one, from 0 to 2. `own` [n, d] are the model's vectors as it
    gives them. Signs and codes are compared with the model's signs and, through the straight line for each
    dimension that fits best, with its numbers; what a line leaves is measured by how these differ. The
    distances are infinite if the server's vectors are longer
    than the model's.
    """
    import numpy as np

    precision = find_precision(served, own.shape[1])
    size = served.shape[1] * (_BITS_OF_BYTE if precision == "bits" else 1)
    if precision == "bits":
        size = min(size, own.shape[1])
    if size > own.shape[1]:
        return ServedForm(size, precision), np.full(len(served), np.inf)
    cut = own[:, :size].astype(np.float64)
    if precision in ("bits", "signs"):
        signs = _unpack(served, size) if precision == "bits" else served > 0
        share = (signs != (cut > 0)).mean(1)
        return ServedForm(size, precision), 2 * np.sin(np.pi * share / 2)
    if precision == "int8":
        # A line fits numbers that hardly differ, whatever they are: the error is relative to their spread.
        spread = np.sqrt(((cut - cut.mean(0)) ** 2).sum(1).mean())
        left = np.linalg.norm(_fit_lines(served, cut) - cut, axis=1)
        return ServedForm(size, precision), left / max(float(spread), 1e-30)
    return ServedForm(size, precision, _find_scale(served, own, size)), _distances(served, cut)


def _distances(first: Rows, second: Rows) -> Rows:
    import numpy as np

    return np.asarray(np.linalg.norm(unit_rows(first) - unit_rows(second), axis=1))


def _unpack(served: Rows, size: int) -> Rows:
    """Return the bits of bytes, from 0 to 255 or, as signed bytes, from -128 to 127."""
    import numpy as np

    shift = _BITS_OF_BYTE * 16 if served.min() < 0 else 0
    packed = (served + shift).astype(np.uint8)
    return np.unpackbits(packed, axis=1, count=size).astype(bool)


def _fit_lines(served: Rows, own: Rows) -> Rows:
    """Return codes decoded by the line a + b · code of each dimension with the least squared error."""
    import numpy as np

    codes = served - served.mean(0)
    slopes = (codes * (own - own.mean(0))).sum(0) / np.maximum((codes**2).sum(0), 1e-30)
    return np.asarray(own.mean(0) + slopes * codes)


def _find_scale(served: Rows, own: Rows, size: int) -> bool | None:
    import numpy as np

    lengths = np.linalg.norm(served, axis=1)

    def are_alike(expected: Rows | float) -> bool:
        return bool(np.allclose(lengths, expected, rtol=_ROUNDED, atol=0))

    own_lengths = np.linalg.norm(own, axis=1)
    are_units = bool(np.allclose(own_lengths, 1, rtol=_ROUNDED, atol=0))
    # A prefix may have the length that is left, or be scaled to length one.
    if are_alike(np.linalg.norm(own[:, :size], axis=1)) or (are_units and are_alike(1.0)):
        return None
    return are_alike(1.0)
