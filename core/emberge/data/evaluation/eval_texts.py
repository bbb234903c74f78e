"""Texts of an evaluation set by their side, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterator

from emberge.contracts import Side
from emberge.data.evaluation.eval_data import (
    ClassificationData,
    ClusteringData,
    EvalData,
    PairData,
    RerankingData,
    RetrievalData,
)


def eval_texts(data: EvalData) -> Iterator[tuple[Side, str]]:
    """Yield each text that is scored, as a query or a document; a classifier's training texts are none."""
    match data:
        case RetrievalData():
            yield from (("query", text) for text in data.queries.values())
            yield from (("document", text) for text in data.corpus.values())
        case RerankingData():
            yield from (("query", text) for text in data.queries)
            for side in (data.positives, data.negatives):
                yield from (("document", text) for texts in side for text in texts)
        case PairData():
            yield from (("query", text) for text in (*data.texts1, *data.texts2))
        case ClassificationData():
            yield from (("query", text) for text in data.test_texts)
        case ClusteringData():
            yield from (("query", text) for text in data.texts)
