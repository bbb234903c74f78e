"""Cosines of pairs of texts, by an encoder whose embeddings are on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emberge_data.steps.pair_scores import Score, Segment
from emberge_data.steps.teacher import OpenTeacher

if TYPE_CHECKING:
    import numpy as np
    from emberge.engine import StoredDataset
    from numpy.typing import NDArray

__all__ = ["pair_cosines"]


def pair_cosines(teacher: OpenTeacher, dataset: StoredDataset, *, work: Path) -> Score:
    """Embed a set's texts and return the function that gives cosines of a segment's pairs.

    Lists of the texts are in the folder `work` meanwhile.
    """
    import numpy as np
    from emberge.engine import DistinctTexts

    rows = range(len(dataset))
    anchors = DistinctTexts((dataset[row].anchor for row in rows), work)
    texts = DistinctTexts(
        (text for row in rows for text in (*dataset[row].positives, *dataset[row].negatives)), work
    )
    queries, documents = teacher.queries(anchors, dataset), teacher.documents(texts, dataset)
    counts = [len(dataset[row].positives) + len(dataset[row].negatives) for row in rows]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def score(segment: Segment) -> tuple[Sequence[float], int]:
        first, last = segment[0][0], segment[-1][0] + 1
        left = queries[np.repeat(anchors.places[first:last], counts[first:last])]
        right = documents[texts.places[ends[first] : ends[last]]]
        return (_unit(left) * _unit(right)).sum(1).clip(-1.0, 1.0).tolist(), 0

    return score


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return vectors at length one in float64; a vector of zeros stays one."""
    import numpy as np

    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(wide / np.where(lengths > 0, lengths, 1.0), np.float64)
