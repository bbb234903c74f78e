"""Drift of a model's embeddings from those of the model that it came from, on the same texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberge.numerics import nearest_rows, overlap

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Embeddings = NDArray[np.floating]


def linear_cka(first: Embeddings, second: Embeddings) -> float:
    """Return the linear CKA of two models' embeddings [n, d] of the same texts (arXiv:1905.00414, eq. 4).

    It is 1 for embeddings that differ by a rotation and a factor alone, and NaN where one model's are all
    equal.
    """
    import numpy as np

    if any((embeddings == embeddings[0]).all() for embeddings in (first, second)):
        return float("nan")
    x, y = (np.asarray(e, np.float64) for e in (first, second))
    x, y = x - x.mean(0), y - y.mean(0)
    sizes = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(x.T @ y) ** 2 / sizes)


def shared_neighbours(first: Embeddings, second: Embeddings, count: int) -> float:
    """Return the share of each text's `count` nearest others, by cosine, that both models name; the mean."""
    import numpy as np

    others = np.arange(len(first))
    nearest = [
        nearest_rows(vectors, vectors, count, skipped=others)
        for vectors in (np.asarray(first, np.float64), np.asarray(second, np.float64))
    ]
    return overlap(*nearest)
