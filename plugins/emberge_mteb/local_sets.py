"""Evaluation sets of local catalogues: their choice, their limits, and fingerprints of their scores."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from emberge import Count, DataRef, Reader
from emberge.contracts import Split
from emberge_data import (
    ClassificationData,
    ClusteringData,
    EvalData,
    EvalSet,
    EvalSource,
    PairData,
    RerankingData,
    RetrievalData,
    load_eval_set,
    pick_eval_sets,
)

_Name = TypeVar("_Name")
# What `limit_queries` counts in sets of each task; texts in others.
_UNITS = {"retrieval": "queries", "reranking": "queries"} | dict.fromkeys(
    ("sts", "pair_classification"), "pairs"
)


@dataclass(frozen=True, kw_only=True)
class EvalEntry(EvalSource):
    """Evaluation sets to score: those of a catalogue, a folder in BEIR's layout, or a file of rows.

    `split` is "test", or "dev" for choosing settings. `limit_queries` is the largest number of queries to
    keep (or pairs, or texts to classify or cluster). `limit_corpus` is the largest number of documents to
    keep; documents that are judged relevant are always kept. The choice depends only on ids and the set's
    name, so it is the same for every model.
    """

    path: DataRef
    split: Split = "test"
    limit_queries: Count | None = None
    limit_corpus: Count | None = None


@dataclass(frozen=True)
class LocalSet:
    """Evaluation set, and the recipe's entry that chose it."""

    eval_set: EvalSet
    entry: EvalEntry

    @property
    def note(self) -> str:
        """Note on the score about how many queries (pairs, texts) and documents were scored at most."""
        task, limit_corpus = self.eval_set.task, self.entry.limit_corpus
        limits = (
            (self.entry.limit_queries, _UNITS.get(task, "texts")),
            (limit_corpus if task == "retrieval" else None, "documents"),
        )
        words = [f"{limit} {word}" for limit, word in limits if limit is not None]
        return f"at most {' and '.join(words)}" if words else ""

    def compute_fingerprint(self, readers: Sequence[Reader]) -> str:
        """Return a hash of the set's files, of its media and of the options that read them.

        Raises:
            DataError: if the data cannot be read; the message has file and line.
        """
        entry = self.entry
        digest = hashlib.sha256(
            f"{self.eval_set.task} {self.eval_set.metric} {self.eval_set.score_range} "
            f"{self.eval_set.instruction}\0{self.eval_set.prompt}\0"
            f"{entry.split}\0{entry.limit_queries} {entry.limit_corpus}".encode()
        )
        if self.eval_set.rows is not None:
            digest.update(f"\0rows {self.eval_set.rows.columns}".encode())
        for name, file in self.eval_set.list_files():
            digest.update(f"\0{name}\0".encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        media: set[str] = set()
        load_eval_set(self.eval_set, readers=readers, split=self.entry.split, media_hashes=media)
        digest.update("".join(sorted(media)).encode())
        return digest.hexdigest()

    def load(self, readers: Sequence[Reader]) -> EvalData:
        """Return the set's texts, cut to the limits.

        Raises:
            DataError: if the data cannot be read; the message has file and line.
        """
        data = load_eval_set(self.eval_set, readers=readers, split=self.entry.split)
        return _cut(data, self.entry, self.eval_set.name)


def list_local_sets(
    entries: Sequence[EvalEntry], resolve: Callable[[DataRef], Path], readers: Sequence[Reader]
) -> Iterator[LocalSet]:
    """Yield every set of the entries, in order."""
    for entry in entries:
        sets = pick_eval_sets(entry, readers=readers, resolve=resolve, split=entry.split)
        yield from (LocalSet(eval_set, entry) for eval_set in sets)


def _cut(data: EvalData, entry: EvalEntry, name: str) -> EvalData:
    """Return the data cut to the limits, with the same queries and documents for every model."""
    match data:
        case RetrievalData():
            return _cut_retrieval(data, entry, name)
        case PairData() | RerankingData() | ClusteringData():
            columns = {f.name: getattr(data, f.name) for f in dataclasses.fields(data)}
            rows = _choose_rows(range(len(next(iter(columns.values())))), entry.limit_queries, name)
            columns_kept = {
                key: value and [value[row] for row in rows] for key, value in columns.items()
            }
            return type(data)(**columns_kept)
        case ClassificationData():
            labels = set(data.train_labels)
            test = [row for row, label in enumerate(data.test_labels) if label in labels]
            test = _choose_rows(test, entry.limit_queries, name)
            return dataclasses.replace(
                data,
                test_texts=[data.test_texts[row] for row in test],
                test_labels=[data.test_labels[row] for row in test],
            )


def _cut_retrieval(data: RetrievalData, entry: EvalEntry, name: str) -> RetrievalData:
    queries = _choose_rows(data.queries, entry.limit_queries, name)
    relevant = {query: data.relevant[query] for query in queries}
    if entry.limit_corpus is None:
        documents = list(data.corpus)
    else:
        relevant_documents = {
            doc for judged in relevant.values() for doc, grade in judged.items() if grade > 0
        }
        other_documents = [
            document for document in data.corpus if document not in relevant_documents
        ]
        spare = max(0, entry.limit_corpus - len(relevant_documents))
        kept_documents = relevant_documents.union(_choose_rows(other_documents, spare, name))
        documents = [document for document in data.corpus if document in kept_documents]
    return RetrievalData(
        {document: data.corpus[document] for document in documents},
        {query: data.queries[query] for query in queries},
        relevant,
    )


def _choose_rows(
    items: Collection[_Name] | Mapping[_Name, object], limit: int | None, name: str
) -> list[_Name]:
    """Return at most `limit` names in their order; a smaller limit keeps a subset of a larger one's."""
    names = list(items)
    if limit is None or limit >= len(names):
        return names

    def rank(index: int) -> bytes:
        return hashlib.sha256(f"{name}\0{names[index]}".encode()).digest()

    return [names[index] for index in sorted(sorted(range(len(names)), key=rank)[:limit])]
