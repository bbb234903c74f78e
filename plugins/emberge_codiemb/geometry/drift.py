"""Drift of a model's embeddings from those of the model that it came from, on the same texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Embeddings = NDArray[np.floating]

__all__ = ["linear_cka", "shared_neighbours"]

# Entries of a table of similarities that are in memory at once: 32 MB.
_CELLS = 4_000_000


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

    x, y = (_unit(np.asarray(e, np.float64)) for e in (first, second))
    rows = max(1, _CELLS // len(x))
    shared = 0
    for start in range(0, len(x), rows):
        block = slice(start, start + rows)
        near = [_nearest(vectors, block, count) for vectors in (x, y)]
        shared += int((near[0] & near[1]).sum())
    return shared / (len(x) * count)


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)


def _nearest(vectors: NDArray[np.float64], block: slice, count: int) -> NDArray[np.bool_]:
    """Return the mask [rows of the block, n] of each row's nearest others."""
    import numpy as np

    scores = vectors[block] @ vectors.T
    own = np.arange(len(scores))
    scores[own, own + block.start] = -np.inf
    mask = np.zeros(scores.shape, bool)
    nearest = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    np.put_along_axis(mask, nearest, True, axis=1)
    return mask
