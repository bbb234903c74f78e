"""Sets to find weights on: texts by side, and the labels and metrics of their scores."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from emberge import Count, DataError, DataRef, Reader, WholeNumber, hash_evenly
from emberge.data import sample_rows
from emberge.wording import count_noun
from emberge_data import (
    EvalData,
    EvalSet,
    EvalSource,
    PairData,
    RetrievalData,
    load_eval_set,
    pick_eval_sets,
)

Split = Literal["test", "dev"]
Statistic = Literal["mean", "spearman"]
# With fewer queries chance decides.
FEWEST_QUERIES = 50
_METRICS: Mapping[str, tuple[str, ...]] = {
    "retrieval": ("ndcg_at_10",),
    "sts": ("spearman", "cosine_spearman"),
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
class JudgedSet:
    """Texts of a set and its judgements.

    In a ranked set, `relevant` has the indices and grades of each query's documents. In a set of
    pairs, `gold` has a value for each query and the document with the same index, and all texts are embedded
    as queries.
    """

    name: str
    statistic: Statistic
    queries: Sequence[str]
    documents: Sequence[str]
    relevant: Sequence[Mapping[int, int]] = ()
    gold: Sequence[float] = ()

    @property
    def unit(self) -> str:
        """Name of the unit that is scored: `pair` or `query`."""
        return "pair" if self.gold else "query"


def read_sets(
    entries: Sequence[SetEntry],
    resolve: Callable[[DataRef], Path | None],
    readers: Sequence[Reader],
) -> Iterator[JudgedSet]:
    """Yield the sets of all readable entries, cut to the entries' limits.

    Raises:
        DataError: if data cannot be read (the message has file and line), or a set cannot be scored from
            similarities.
    """
    for entry in entries:
        for eval_set in pick_eval_sets(entry, readers=readers, resolve=resolve, split=entry.split):
            if (problem := explain_unusable(eval_set)) is not None:
                raise DataError(problem)
            data = load_eval_set(eval_set, readers=readers, split=entry.split)
            data = _limit_queries(data, entry.limit_queries, eval_set.name)
            data = _limit_documents(data, entry.limit_documents, eval_set.name)
            yield _make_judged_set(eval_set, entry.split, data)


def require_sets(sets: Sequence[JudgedSet]) -> None:
    """Require sets that are large enough to choose by.

    Raises:
        DataError: if a set has fewer than 50 queries or pairs.
    """
    for judged_set in sets:
        if len(judged_set.queries) < FEWEST_QUERIES:
            count = count_noun(len(judged_set.queries), judged_set.unit)
            raise DataError(
                f"set '{judged_set.name}' has {count}; with so few chance decides; "
                f"take a set with {FEWEST_QUERIES} or more"
            )


def explain_unusable(eval_set: EvalSet) -> str | None:
    """Return the reason why a set cannot be scored from similarities; None if it can."""
    metrics = _METRICS.get(eval_set.task)
    if metrics is None:
        return (
            f"set '{eval_set.name}' is of kind {eval_set.task}, whose score takes more than similarities; "
            f"leave it out with `only`, and take sets of {', '.join(_METRICS)}"
        )
    if eval_set.metric is not None and eval_set.metric not in metrics:
        return (
            f"set '{eval_set.name}' is judged by {eval_set.metric}; from similarities {metrics[0]} is "
            "computed"
        )
    return None


def _make_judged_set(eval_set: EvalSet, split: Split, data: EvalData) -> JudgedSet:
    name = eval_set.name if split == "test" else f"{eval_set.name}-{split}"
    if isinstance(data, RetrievalData):
        places = {document: number for number, document in enumerate(data.corpus)}
        judged_documents = [
            {places[document]: grade for document, grade in data.relevant[query].items()}
            for query in data.queries
        ]
        queries, documents = list(data.queries.values()), list(data.corpus.values())
        return JudgedSet(name, "mean", queries, documents, judged_documents)
    assert isinstance(data, PairData)
    return JudgedSet(name, "spearman", list(data.texts1), list(data.texts2), gold=list(data.scores))


def _limit_queries(data: EvalData, limit: int | None, name: str) -> EvalData:
    """Return the data with an even sample of queries, their documents and as many others; or of pairs."""
    if limit is None:
        return data
    if isinstance(data, PairData):
        rows = sample_rows(len(data.scores), limit, name)
        columns = (data.texts1, data.texts2, data.scores)
        return PairData(*([column[row] for row in rows] for column in columns))  # type: ignore[arg-type]
    assert isinstance(data, RetrievalData)
    queries = list(data.queries)
    relevant = {
        query: data.relevant[query]
        for query in map(queries.__getitem__, sample_rows(len(queries), limit, name))
    }
    needed = {document for grades in relevant.values() for document in grades}
    others = (document for document in data.corpus if document not in needed)
    needed.update(sorted(others, key=lambda document: hash_evenly(name, document))[:limit])
    return RetrievalData(
        {document: text for document, text in data.corpus.items() if document in needed},
        {query: data.queries[query] for query in relevant},
        relevant,
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
