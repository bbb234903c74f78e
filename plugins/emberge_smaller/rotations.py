"""Rotations of embeddings: for prefixes that keep most of them, or for signs that do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from emberge.contracts import StoredForm
from emberge.numerics import nearest_rows, overlap

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEIGHBOURS = 10
"""Number of nearest texts that are compared."""
# Numbers in memory at once: 64 MB of float64.
_CELLS = 8 << 20


def principal_axes(moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the eigenvectors of a symmetric matrix as columns [d, d], by descending eigenvalues.

    Each has a positive largest entry, so that signs are fixed.
    """
    _, axes = np.linalg.eigh(moments)
    axes = axes[:, ::-1]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(0)[None], 0)
    return np.asarray(axes * np.sign(largest))


def fit_rotation(
    rows: NDArray[np.float32],
    size: int,
    kind: Literal["pca", "itq"],
    *,
    rounds: int,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float64]:
    """Return a matrix with orthonormal columns, float64 [d, size], that turns embeddings [n, d].

    `pca` gives the principal axes of the embeddings, without their mean removed: of all prefixes of a size,
    theirs keeps the sum of squared lengths largest. `itq` turns these axes so that numbers come near to their
    signs, by `rounds` rounds that alternate between the signs and the best rotation to them (iterative
    quantisation: Gong et al., 2013, doi 10.1109/TPAMI.2012.193). It begins with the same random rotation each
    time.
    """
    axes = principal_axes(_sum_products(rows))[:, :size]
    if kind == "pca":
        return axes
    projected = (rows @ axes.astype(np.float32)).astype(np.float32)
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))
    for number in range(1, rounds + 1):
        signs = np.where(projected @ rotation.astype(np.float32) > 0, np.float32(1), np.float32(-1))
        left, _, right = np.linalg.svd((projected.T @ signs).astype(np.float64))
        rotation = left @ right
        if progress is not None:
            progress(number, rounds)
    return np.asarray(axes @ rotation)


def _sum_products(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the sum of the outer products of rows with themselves, float64 [d, d]."""
    size = rows.shape[1]
    total, step = np.zeros((size, size)), max(1, _CELLS // size)
    for start in range(0, len(rows), step):
        block = rows[start : start + step].astype(np.float64)
        total += block.T @ block
    return total


@dataclass(frozen=True)
class KeptNeighbours:
    """Share of each text's nearest texts that are still so in a form of its vectors.

    `before` is that of the vectors as they are, and `after` that of the turned ones.
    """

    size: int
    precision: str
    before: float
    after: float


def list_sizes(size: int) -> list[int]:
    """Return the sizes of prefixes to measure: the whole, and at most three powers of two below it."""
    powers = [1 << power for power in range(3, size.bit_length()) if 1 << power < size]
    return [size, *powers[::-1][:3]]


def measure_neighbours(
    rows: NDArray[np.float32], matrix: NDArray[np.float64]
) -> list[KeptNeighbours]:
    """Return how many of each text's ten nearest texts stay in prefixes and bits of embeddings [n, d].

    The nearest texts are those by the cosine of whole float32 embeddings, among these texts.
    """
    turned = (rows.astype(np.float64) @ matrix).astype(np.float32)
    places = np.arange(len(rows))
    exact = nearest_rows(rows, rows, NEIGHBOURS, skipped=places)

    def share(found: NDArray[np.int64]) -> float:
        return overlap(exact, found)

    kept = []
    for size in list_sizes(matrix.shape[1]):
        both = (rows[:, :size], turned[:, :size])
        cosines = [share(nearest_rows(part, part, NEIGHBOURS, skipped=places)) for part in both]
        bits = [share(_find_by_bits(part, exact.shape[1])) for part in both]
        kept += [KeptNeighbours(size, "float32", *cosines), KeptNeighbours(size, "binary", *bits)]
    return kept


def _find_by_bits(rows: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the places of each row's `count` nearest other rows by Hamming distance [n, count]."""
    from emberge.encoding import QuantisedVectors

    stored = QuantisedVectors.store(StoredForm(precision="binary"), rows)
    found = stored.search(rows, count + 1)
    own = found == np.arange(len(rows))[:, None]
    own[~own.any(1), -1] = True  # so many rows have its bits that it is not among the first
    return np.asarray(found[~own].reshape(len(rows), count))


def draw_kept(kept: Sequence[KeptNeighbours], texts: str) -> dict[str, Any]:
    """Return a figure of kept neighbours by the size of vectors, as artifacts' details have it.

    `texts` says of which texts they are.
    """
    sizes = sorted({one.size for one in kept})

    def series(precision: str, side: str) -> list[float]:
        by_size = {one.size: one for one in kept if one.precision == precision}
        return [getattr(by_size[size], side) for size in sizes]

    return {
        "title": f"Neighbours kept: {texts}",
        "caption": (
            f"Share of each text's {NEIGHBOURS} nearest texts, by whole float32 vectors, that are nearest by "
            "the leading numbers of vectors, or by their signs."
        ),
        "lines": {
            "x": "numbers",
            "y": "share of neighbours kept",
            "labels": [str(size) for size in sizes],
            "series": {
                "rotated": series("float32", "after"),
                "as it is": series("float32", "before"),
                "rotated, bits": series("binary", "after"),
                "as it is, bits": series("binary", "before"),
            },
        },
        "table": {
            "title": f"Neighbours kept: {texts}",
            "head": ["numbers", "precision", "as it is", "rotated"],
            "rows": [[one.size, one.precision, one.before, one.after] for one in kept],
        },
    }
