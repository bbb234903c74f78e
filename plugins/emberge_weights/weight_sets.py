"""Sets to find weights on: texts by side, and the labels and metrics of their scores."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from emberge import (
    ClassificationData,
    ClusteringData,
    Count,
    DataError,
    DataRef,
    EvalData,
    EvalSet,
    EvalSource,
    PairData,
    Reader,
    RetrievalData,
    WholeNumber,
)
from emberge.data import load_eval_set, pick_eval_sets
from emberge.wording import count_noun

Metric = Literal["task", "agreement", "neighbours"]
Split = Literal["test", "dev"]
Statistic = Literal["mean", "spearman", "average_precision"]
# With fewer queries chance decides.
FEWEST = 50
# Standard deviation over queries of the difference of a specialist and a mean of specialists, in points of
# nDCG@10: 5 to 10 for all-MiniLM-L6-v2 on nl2bash and squad.
_SPREAD = 10.0
_METRICS: Mapping[str, tuple[str, ...]] = {
    "retrieval": ("ndcg_at_10",),
    "sts": ("spearman", "cosine_spearman"),
    "pair_classification": ("average_precision", "cosine_ap"),
}


@dataclass(frozen=True, kw_only=True)
class SetEntry(EvalSource):
    """Evaluation sets to find weights on: those of a catalogue, a folder in BEIR's layout, or a file of rows.

    `split` is `dev`, which is for choosing, or `test`. `limit_queries` keeps an even sample of queries, pairs
    or texts. `limit_documents` keeps the documents that belong to a query and this many others. They rank
    weightings almost as the whole corpus does and take less time to embed, but scores are higher.
    """

    path: DataRef
    split: Split = "dev"
    limit_queries: Count | None = None
    limit_documents: WholeNumber | None = 500


@dataclass(frozen=True)
class WeightSet:
    """Texts of a set and its judgements.

    In a ranked set, `relevant` has the indices and grades of each query's documents. In a set of
    pairs, `gold` has a value for each query and the document with the same index. If `alike` is true, all
    texts are embedded as queries.
    """

    name: str
    kind: str
    statistic: Statistic
    metric: str
    queries: Sequence[str]
    documents: Sequence[str]
    relevant: Sequence[Mapping[int, int]] = ()
    gold: Sequence[float] = ()
    alike: bool = False
    asked: Mapping[str, str] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """Name of the unit that is scored: `pair` or `query`."""
        return "pair" if self.gold else "query"

    @property
    def itself(self) -> bool:
        """True if queries and documents are the same texts: a query's own text must not count as a hit."""
        return self.queries is self.documents


def read_sets(
    entries: Sequence[SetEntry],
    resolve: Callable[[DataRef], Path | None],
    readers: Sequence[Reader],
    metric: Metric,
) -> Iterator[WeightSet]:
    """Yield the sets of all readable entries.

    Raises:
        DataError: if data cannot be read (the message has file and line), or a set cannot be scored from
            similarities.
    """
    for entry in entries:
        for eval_set in pick_eval_sets(entry, readers=readers, resolve=resolve, split=entry.split):
            yield read_set(eval_set, entry, readers, metric)


def read_set(
    eval_set: EvalSet, entry: SetEntry, readers: Sequence[Reader], metric: Metric
) -> WeightSet:
    """Return one set of an entry, cut to the entry's limits.

    Raises:
        DataError: if its data cannot be read (the message has file and line), or it cannot be scored from
            similarities.
    """
    fault = unusable(eval_set, metric)
    if fault is not None:
        raise DataError(fault)
    data = load_eval_set(eval_set, readers=readers, split=entry.split, limit=entry.limit_queries)
    data = _limit_documents(data, entry.limit_documents, eval_set.name)
    return _make_weight_set(eval_set, entry.split, data, metric)


def describe_few(name: str, unit: str, count: int) -> str | None:
    """Return why a set with so many queries or pairs is too small to choose by; None if it is not."""
    if count >= FEWEST:
        return None
    smallest_gain = 2 * _SPREAD / max(1, count) ** 0.5
    return (
        f"set '{name}' has {count_noun(count, unit)}; with so few, differences below about "
        f"{smallest_gain:.0f} points cannot be told from chance, and what is chosen by them is chance; take "
        f"a set with {FEWEST} or more"
    )


def unusable(eval_set: EvalSet, metric: Metric) -> str | None:
    """Return the reason why a set cannot be scored from similarities; None if it can."""
    if metric != "task":
        return None if eval_set.task != "reranking" else f"set '{eval_set.name}' is for reranking"
    metrics = _METRICS.get(eval_set.task)
    if metrics is None:
        return (
            f"set '{eval_set.name}' is of kind {eval_set.task}, whose score takes more than similarities; "
            f"leave it out with `only`, take sets of {', '.join(_METRICS)}, or write `metric: agreement`"
        )
    if eval_set.metric is not None and eval_set.metric not in metrics:
        return (
            f"set '{eval_set.name}' is judged by {eval_set.metric}; from similarities {metrics[0]} is "
            "computed"
        )
    return None


def _make_weight_set(eval_set: EvalSet, split: Split, data: EvalData, metric: Metric) -> WeightSet:
    name = eval_set.name if split == "test" else f"{eval_set.name}-{split}"
    prompt_words = {"instruction": eval_set.instruction, "prompt": eval_set.prompt}
    if metric != "task":
        queries, documents = _list_unlabelled_texts(data)
        alike = not isinstance(data, RetrievalData)
        return WeightSet(
            name, eval_set.task, "mean", metric, queries, documents, alike=alike, asked=prompt_words
        )
    if isinstance(data, RetrievalData):
        places = {document: number for number, document in enumerate(data.corpus)}
        judged_documents = [
            {places[document]: grade for document, grade in data.relevant[query].items()}
            for query in data.queries
        ]
        queries, documents = list(data.queries.values()), list(data.corpus.values())
        return WeightSet(
            name,
            eval_set.task,
            "mean",
            "ndcg_at_10",
            queries,
            documents,
            judged_documents,
            asked=prompt_words,
        )
    assert isinstance(data, PairData)
    statistic: Statistic = "spearman" if eval_set.task == "sts" else "average_precision"
    gold = [score if eval_set.task == "sts" else float(round(score)) for score in data.scores]
    return WeightSet(
        name,
        eval_set.task,
        statistic,
        statistic,
        list(data.texts1),
        list(data.texts2),
        gold=gold,
        alike=True,
        asked=prompt_words,
    )


def _limit_documents(data: EvalData, limit: int | None, name: str) -> EvalData:
    """Return the data with the queries' own documents and a fixed sample of others."""
    if not isinstance(data, RetrievalData) or limit is None:
        return data
    relevant = {document for grades in data.relevant.values() for document in grades}
    other_documents = [document for document in data.corpus if document not in relevant]
    other_documents.sort(
        key=lambda document: hashlib.sha256(f"{name}\0{document}".encode()).digest()
    )
    selected = relevant.union(other_documents[:limit])
    documents = {document: text for document, text in data.corpus.items() if document in selected}
    return RetrievalData(documents, data.queries, data.relevant)


def _list_unlabelled_texts(data: EvalData) -> tuple[Sequence[str], Sequence[str]]:
    """Return the distinct texts of a set without its labels: (queries, documents)."""
    if isinstance(data, RetrievalData):
        return list(data.queries.values()), list(data.corpus.values())
    if isinstance(data, PairData):
        texts = [*data.texts1, *data.texts2]
    else:
        assert isinstance(data, (ClassificationData, ClusteringData))
        texts = list(data.texts if isinstance(data, ClusteringData) else data.test_texts)
    texts = list(dict.fromkeys(texts))
    return texts, texts
