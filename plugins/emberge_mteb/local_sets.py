"""Evaluation sets of local catalogues: their choice, their limits, and fingerprints of their scores."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from emberge import Count, DataRef, Reader
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

T = TypeVar("T")
Split = Literal["test", "dev"]


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
class SetLimits:
    """Limits on the used rows of a set."""

    queries: int | None = None
    corpus: int | None = None

    @property
    def note(self) -> str:
        """Note beside the score on how many queries and documents were scored at most."""
        parts = [
            f"{limit} {word}"
            for limit, word in ((self.queries, "queries"), (self.corpus, "documents"))
            if limit is not None
        ]
        return f"at most {' and '.join(parts)}" if parts else ""


@dataclass(frozen=True)
class LocalSet:
    """Evaluation set with the settings of its scoring."""

    set: EvalSet
    split: Split
    limits: SetLimits

    @property
    def fingerprint(self) -> str:
        """Hash of the set's files and of the options that read them."""
        digest = hashlib.sha256(
            f"{self.set.task} {self.set.metric} {self.set.score_range} "
            f"{self.set.instruction}\0{self.set.prompt}\0"
            f"{self.split}\0{self.limits}".encode()
        )
        if self.set.rows is not None:
            digest.update(f"\0rows {self.set.rows.columns}".encode())
        for name, file in self.set.files():
            digest.update(f"\0{name}\0".encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()

    def load(self, readers: Sequence[Reader]) -> EvalData:
        """Return the set's texts, cut to the limits.

        Raises:
            DataError: if the data cannot be read; the message has file and line.
        """
        data = load_eval_set(self.set, readers=readers, split=self.split)
        return cut(data, self.limits, self.set.name)


def pick_sets(
    entry: EvalEntry, resolve: Callable[[DataRef], Path | None], readers: Sequence[Reader]
) -> list[EvalSet]:
    """Return the sets of an entry; no set if its step has not run."""
    return pick_eval_sets(entry, readers=readers, resolve=resolve, split=entry.split)


def local_sets(
    entries: Sequence[EvalEntry],
    resolve: Callable[[DataRef], Path],
    readers: Sequence[Reader],
) -> Iterator[LocalSet]:
    """Return every set of the entries, in order."""
    for entry in entries:
        limits = SetLimits(entry.limit_queries, entry.limit_corpus)
        for eval_set in pick_sets(entry, resolve, readers):
            yield LocalSet(eval_set, entry.split, limits)


def cut(data: EvalData, limits: SetLimits, name: str) -> EvalData:
    """Return the data cut to the limits, with the same queries and documents for every model."""
    match data:
        case RetrievalData():
            return _cut_retrieval(data, limits, name)
        case PairData() | RerankingData() | ClusteringData():
            columns = {f.name: getattr(data, f.name) for f in dataclasses.fields(data)}
            rows = _choose_rows(range(len(next(iter(columns.values())))), limits.queries, name)
            columns_kept = {
                key: value and [value[row] for row in rows] for key, value in columns.items()
            }
            return type(data)(**columns_kept)
        case ClassificationData():
            labels = set(data.train_labels)
            test = [row for row, label in enumerate(data.test_labels) if label in labels]
            test = _choose_rows(test, limits.queries, name)
            return dataclasses.replace(
                data,
                test_texts=[data.test_texts[row] for row in test],
                test_labels=[data.test_labels[row] for row in test],
            )


def _cut_retrieval(data: RetrievalData, limits: SetLimits, name: str) -> RetrievalData:
    queries = _choose_rows(data.queries, limits.queries, name)
    relevant = {query: data.relevant[query] for query in queries}
    if limits.corpus is None:
        documents = list(data.corpus)
    else:
        relevant_documents = {
            doc for judged in relevant.values() for doc, grade in judged.items() if grade > 0
        }
        other_documents = [
            document for document in data.corpus if document not in relevant_documents
        ]
        spare = max(0, limits.corpus - len(relevant_documents))
        kept_documents = relevant_documents.union(_choose_rows(other_documents, spare, name))
        documents = [document for document in data.corpus if document in kept_documents]
    return RetrievalData(
        {document: data.corpus[document] for document in documents},
        {query: data.queries[query] for query in queries},
        relevant,
    )


def _choose_rows(
    items: Collection[T] | Mapping[T, object], limit: int | None, name: str
) -> list[T]:
    """Return at most `limit` names in their order; a smaller limit keeps a subset of a larger one's."""
    names = list(items)
    if limit is None or limit >= len(names):
        return names

    def rank(index: int) -> bytes:
        return hashlib.sha256(f"{name}\0{names[index]}".encode()).digest()

    return [names[index] for index in sorted(sorted(range(len(names)), key=rank)[:limit])]
