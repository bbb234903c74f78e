"""Evaluation sets in memory: texts, labels and judgements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emberge.contracts import Side


@dataclass(frozen=True, slots=True)
class RetrievalData:
    """Texts by id and judgements: `relevant[query][document]` is a grade, 0 for judged irrelevant.

    `corpus` has each document's title and text, joined by a space. `queries` has only queries with a
    judgement.
    """

    corpus: Mapping[str, str]
    queries: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class PairData:
    """Pairs of texts with gold scores in 0 to 1 (0 or 1 for pair classification)."""

    texts1: Sequence[str]
    texts2: Sequence[str]
    scores: Sequence[float]


@dataclass(frozen=True, slots=True)
class ClassificationData:
    """Labelled texts to fit a classifier on frozen embeddings, and further labelled texts to test it."""

    train_texts: Sequence[str]
    train_labels: Sequence[str]
    test_texts: Sequence[str]
    test_labels: Sequence[str]


@dataclass(frozen=True, slots=True)
class ClusteringData:
    """Texts and the cluster each belongs to."""

    texts: Sequence[str]
    labels: Sequence[str]


@dataclass(frozen=True, slots=True)
class RerankingData:
    """Queries, each with its relevant texts, which should be ranked first, and its other texts."""

    queries: Sequence[str]
    positives: Sequence[Sequence[str]]
    negatives: Sequence[Sequence[str]]


EvalData = RetrievalData | PairData | ClassificationData | ClusteringData | RerankingData


def eval_texts(data: EvalData) -> Iterator[tuple[Side, str]]:
    """Yield each scored text as a query or a document; texts that only fit a classifier are left out."""
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
