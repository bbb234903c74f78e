"""Measures of mapped vectors against a model's own: cosine, neighbours kept, nDCG and gain kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "NEIGHBOURS",
    "are_unit",
    "cosines",
    "gain_kept",
    "ndcg",
    "overlap",
    "ten_nearest",
    "unit",
]

NEIGHBOURS = 10
# Queries that are compared with all documents at once.
QUERIES = 64


def unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Return the vectors scaled to length 1, float32; one of zeros stays."""
    import numpy as np

    found = np.asarray(vectors, np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", found, found))
    return np.asarray(found / np.where(lengths > 0, lengths, 1)[:, None], np.float32)


def are_unit(vectors: NDArray[Any]) -> bool:
    """Return whether all vectors but those of zeros have length 1, as far as float16 can tell."""
    import numpy as np

    found = np.asarray(vectors, np.float64)
    lengths = np.sqrt((found * found).sum(1))
    return bool((np.abs(lengths[lengths > 0] - 1) < 5e-3).all())


def cosines(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    """Return the cosine of each row of one with the same row of the other."""
    import numpy as np

    found: NDArray[np.float64] = np.einsum("ij,ij->i", unit(first), unit(second), dtype=np.float64)
    return found


def ten_nearest(
    queries: NDArray[Any], documents: NDArray[Any], own: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return the places of each query's nearest documents by cosine, nearest first; of equals the earlier.

    `own` is a document that a query does not see: itself.
    """
    import numpy as np

    asked, found = unit(queries), unit(documents)
    count = min(NEIGHBOURS, len(found) - (own is not None))
    nearest = np.empty((len(asked), count), np.int64)
    for first in range(0, len(asked), QUERIES):
        scores = asked[first : first + QUERIES] @ found.T
        if own is not None:
            scores[np.arange(len(scores)), own[first : first + QUERIES]] = -np.inf
        nearest[first : first + QUERIES] = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return nearest


def overlap(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Return the mean share of documents that two lists of nearest ones have in common."""
    import numpy as np

    shared = [len(np.intersect1d(a, b)) for a, b in zip(first, second, strict=True)]
    return float(sum(shared)) / (len(shared) * int(first.shape[1]))


def ndcg(nearest: NDArray[np.int64], relevant: Sequence[Sequence[int]]) -> float:
    """Return nDCG@10, the mean over queries; every relevant document counts the same."""
    import numpy as np

    discounts = 1 / np.log2(np.arange(2, nearest.shape[1] + 2))
    scores = [
        float(discounts[np.isin(found, right)].sum() / discounts[: len(right)].sum())
        for found, right in zip(nearest, relevant, strict=True)
    ]
    return float(np.mean(scores))


def gain_kept(scores: Mapping[str, float], mapped: str = "mapped") -> float | None:
    """Return (mapped - old) / (new - old): the share of the new model's gain; None where there is none."""
    gain = scores["new"] - scores["old"]
    return (scores[mapped] - scores["old"]) / gain if gain > 0 else None
