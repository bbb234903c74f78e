"""Evaluation sets of a catalogue, read into plain texts, labels and judgements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from emberge.contracts import BadRow, Reader, TaskKind
from emberge.data.data_sources import find_reader
from emberge.data.entry import DataEntry, EvalSet
from emberge.data.evaluation.beir import read_retrieval
from emberge.data.evaluation.eval_data import (
    ClassificationData,
    ClusteringData,
    EvalData,
    PairData,
    RerankingData,
)
from emberge.data.file_summary import DataDecisions, FileSummary, decide_data, shown, understood
from emberge.data.rows.media_values import MediaValues
from emberge.data.rows.row_parser import Row
from emberge.data.sampling import sample_labelled, sample_rows
from emberge.errors import DataError
from emberge.media import MediaFolder
from emberge.wording import printable

T = TypeVar("T")


def load_eval_set(
    eval_set: EvalSet,
    *,
    readers: Sequence[Reader],
    split: str = "test",
    limit: int | None = None,
    store: Path | None = None,
) -> EvalData:
    """Read one half (`test` or `dev`) of an evaluation set.

    `limit` keeps an even sample of queries, pairs or texts that depends on the set's name alone; of a
    retrieval set the documents that belong to the queries stay, and as many others; of labelled texts
    whole labels are left out, so that each that stays has several texts. Images and clips are references
    within the texts; bytes of them are kept in `store`, or else until the process ends.

    Raises:
        DataError: naming file and line, for files that are missing and rows that cannot be used.
    """
    if not eval_set.folder.is_dir():
        raise DataError(f"{_where(eval_set)}{shown(eval_set.folder)}: there is no such folder")
    return _LOADERS[eval_set.task](_Half(eval_set, readers, split, limit, store))


def _where(eval_set: EvalSet) -> str:
    return f"{eval_set.where}: " if eval_set.where else ""


class _Half:
    """One half of a set while it is read."""

    def __init__(
        self,
        eval_set: EvalSet,
        readers: Sequence[Reader],
        split: str,
        limit: int | None,
        store: Path | None,
    ) -> None:
        self.eval_set, self.readers, self.split, self.limit = eval_set, readers, split, limit
        self.media = MediaValues(MediaFolder(store, eval_set.folder))

    def file(self, stem: str) -> Path:
        """Return the file of the folder that is called `stem` before an ending that can be read."""
        folder = self.eval_set.folder
        for reader in self.readers:
            for suffix in reader.suffixes:
                if (folder / f"{stem}{suffix}").is_file():
                    return folder / f"{stem}{suffix}"
        there = (
            printable(", ".join(sorted(path.name for path in folder.iterdir())), 200) or "nothing"
        )
        raise DataError(
            f"{_where(self.eval_set)}{shown(folder)} has no {stem} file for a set of kind "
            f"{self.eval_set.task}; it has {there}"
        )

    def plain(self, stem: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield `file:line` and each row of a file."""
        path = self.file(stem)
        place = shown(path)
        for line, row in find_reader(path, self.readers).rows(path):
            if isinstance(row, BadRow):
                raise DataError(f"{place}:{line}: {printable(row.message)}")
            yield f"{place}:{line}", row

    def rows(self, stem: str, task: TaskKind) -> tuple[list[Row], DataDecisions]:
        """Read rows in the format of training files, checked as those are."""
        path = self.file(stem)
        entry = DataEntry(task=task, score_range=self.eval_set.score_range, prompt="")
        summary = FileSummary(shown(path))
        read = find_reader(path, self.readers).rows(path)
        rows = list(understood(read, entry, summary, self.media))
        return rows, decide_data(summary, entry)

    def sample(self, items: Sequence[T]) -> list[T]:
        """Return the items that the limit keeps."""
        return [items[i] for i in sample_rows(len(items), self.limit, self.eval_set.name)]

    def labelled(self, stem: str) -> tuple[list[str], list[str]]:
        """Read the texts and labels of a file."""
        rows, _ = self.rows(stem, "classification")
        labels = [str(row.label) for row in rows]
        if not rows or rows[0].label is None:
            raise DataError(f"{shown(self.file(stem))}: the rows need the columns text and label")
        kept = sample_labelled(labels, self.limit, self.eval_set.name)
        return [rows[i].anchor for i in kept], [labels[i] for i in kept]


def _pairs(half: _Half) -> PairData:
    rows, decisions = half.rows(half.split, half.eval_set.task)
    subsets = []
    for row, (where, plain) in zip(rows, half.plain(half.split), strict=True):
        subset = plain.get("subset")
        if isinstance(subset, bool) or not isinstance(subset, str | int | None):
            raise DataError(f"{where}: 'subset' is a word, not a {type(subset).__name__}")
        subsets.append(subset)
        if len(row.positives) != 1 or row.positive_scores is None:
            raise DataError(f"{where}: a pair needs one other text and one score")
    examples = half.sample([decisions.example(row) for row in rows])
    kept = half.sample(subsets)
    return PairData(
        [example.anchor for example in examples],
        [example.positives[0] for example in examples],
        [(example.positive_scores or (0.0,))[0] for example in examples],
        [str(subset) for subset in kept] if all(s is not None for s in subsets) else None,
    )


def _classification(half: _Half) -> ClassificationData:
    return ClassificationData(*half.labelled("train"), *half.labelled(half.split))


def _clustering(half: _Half) -> ClusteringData:
    return ClusteringData(*half.labelled(half.split))


def _reranking(half: _Half) -> RerankingData:
    rows, _ = half.rows(half.split, "reranking")
    for row, (where, _) in zip(rows, half.plain(half.split), strict=True):
        if not row.negatives:
            raise DataError(f"{where}: a row to rerank needs negatives; add them or remove the row")
    rows = half.sample(rows)
    return RerankingData(
        [row.anchor for row in rows],
        [row.positives for row in rows],
        [row.negatives for row in rows],
    )


def _retrieval(half: _Half) -> EvalData:
    return read_retrieval(
        half.eval_set,
        corpus=half.plain("corpus"),
        queries=half.plain("queries"),
        media=half.media,
        split=half.split,
        limit=half.limit,
    )


_LOADERS: Mapping[str, Callable[[_Half], EvalData]] = {
    "retrieval": _retrieval,
    "reranking": _reranking,
    "classification": _classification,
    "clustering": _clustering,
    "sts": _pairs,
    "pair_classification": _pairs,
}
