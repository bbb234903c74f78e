"""The texts of evaluation sets, read from the folder of a set or from rows in the format of training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from emberge.contracts import Reader, TaskKind
from emberge.data.data_sources import find_reader
from emberge.data.entry import Columns, DataEntry, EvalSet
from emberge.data.evaluation.beir_files import find_judgement_file, read_retrieval
from emberge.data.evaluation.eval_data import (
    ClassificationData,
    ClusteringData,
    EvalData,
    PairData,
    RerankingData,
)
from emberge.data.evaluation.rows_retrieval import (
    SearchedDocuments,
    join_rows,
    read_placed_rows,
    read_searched_documents,
)
from emberge.data.file_summary import (
    DataDecisions,
    FileSummary,
    decide_data,
    format_path,
    parse_rows,
)
from emberge.data.rows.media_values import MediaValues
from emberge.data.rows.row_faults import SetFaults
from emberge.data.rows.row_parser import Row
from emberge.data.sampling import even_place, sample_labelled, sample_rows
from emberge.errors import DataError
from emberge.media import MediaFolder
from emberge.wording import join_some

T = TypeVar("T")


def load_eval_set(
    eval_set: EvalSet,
    *,
    readers: Sequence[Reader],
    split: str = "test",
    limit: int | None = None,
    store: Path | None = None,
) -> EvalData:
    """Read one half (`test` or `dev`) of an evaluation set; a set of rows has no halves.

    `limit` keeps an even sample of queries, pairs or texts that depends only on the set's name. A retrieval
    set keeps the documents that belong to these queries, and as many other documents. Of labelled texts,
    whole labels are left out, so that each remaining label has several texts. Images and clips are references
    within the texts; their bytes are kept in `store` or, if it is None, until the process ends.

    Raises:
        DataError: if a file is missing, a row cannot be used, no document is relevant to a query, or ids,
            grades or rows contradict each other; has a line with `file:line` for each fault.
    """
    _require_folder(eval_set)
    return _LOADERS[eval_set.task](_HalfReader(eval_set, readers, split, limit, store))


def list_set_faults(eval_set: EvalSet, split: str, readers: Sequence[Reader]) -> list[str]:
    """Read one half of an evaluation set, and return all that cannot be used, each with `file:line`."""
    half = _HalfReader(eval_set, readers, split, None, None)
    with half.faults.collect():
        _LOADERS[eval_set.task](half)
    try:
        half.faults.require_none()
    except DataError as error:
        return str(error).splitlines()
    return []


def lacking_half(eval_set: EvalSet, split: str, readers: Sequence[Reader]) -> str | None:
    """Return why a half (`test` or `dev`) of a set cannot be read, without reading it; None if it can."""
    stems = {"retrieval": ["corpus", "queries"], "classification": ["train", split]}
    try:
        _require_folder(eval_set)
        for stem in stems.get(eval_set.task, [split]):
            _find_half_file(eval_set, stem, readers)
        if eval_set.rows is None and eval_set.task == "retrieval":
            find_judgement_file(eval_set, split)
    except DataError as error:
        return str(error)
    return None


def _describe_place(eval_set: EvalSet) -> str:
    return f"{eval_set.where}: " if eval_set.where else ""


def _require_folder(eval_set: EvalSet) -> None:
    if not eval_set.folder.is_dir():
        raise DataError(
            f"{_describe_place(eval_set)}{format_path(eval_set.folder)}: there is no such folder"
        )


def _find_half_file(eval_set: EvalSet, stem: str, readers: Sequence[Reader]) -> Path:
    """Return the file in a set's folder whose name is `stem` and a suffix of a known format.

    In a set of rows, that of "train" is the file to fit a classifier on, and any other is the rows' file.

    Raises:
        DataError: if there is none; the message has the files of the folder.
    """
    if eval_set.rows is not None:
        fitted = eval_set.rows.fitted if stem == "train" else None
        path = fitted or eval_set.rows.path
        if not path.is_file():
            raise DataError(f"{format_path(path)}: there is no such file of rows")
        return path
    folder = eval_set.folder
    for reader in readers:
        for suffix in reader.suffixes:
            if (folder / f"{stem}{suffix}").is_file():
                return folder / f"{stem}{suffix}"
    listed_files = join_some(sorted(path.name for path in folder.iterdir()), 10) or "nothing"
    raise DataError(
        f"{_describe_place(eval_set)}{format_path(folder)} has no {stem} file for a set of kind "
        f"{eval_set.task}; it has {listed_files}"
    )


class _HalfReader:
    """One half of a set, while it is read."""

    def __init__(
        self,
        eval_set: EvalSet,
        readers: Sequence[Reader],
        split: str,
        limit: int | None,
        store: Path | None,
    ) -> None:
        self.eval_set, self.readers, self.split, self.limit = eval_set, readers, split, limit
        self.faults = SetFaults()
        self.places: dict[str, list[str]] = {}
        """`file:line` of each row that was read, by the file's stem."""
        self.media = MediaValues(MediaFolder(store, eval_set.folder))

    def file(self, stem: str) -> Path:
        """Return the file of the half, or of the rows to fit a classifier on."""
        return _find_half_file(self.eval_set, stem, self.readers)

    def plain(self, stem: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Return an iterator over `file:line` and each row of a file."""
        return read_placed_rows(self.file(stem), self.readers, self.faults)

    def rows(self, stem: str, task: TaskKind) -> tuple[list[Row], DataDecisions]:
        """Read rows in the format of training files, with the same checks."""
        path = self.file(stem)
        columns = Columns() if self.eval_set.rows is None else self.eval_set.rows.columns
        score_range = self.eval_set.score_range
        entry = DataEntry(task=task, columns=columns, score_range=score_range, prompt="")
        summary = FileSummary(format_path(path))
        read = find_reader(path, self.readers).rows(path)
        numbered_rows = list(parse_rows(read, entry, summary, self.media))
        self.places[stem] = [f"{summary.place}:{number}" for number, _ in numbered_rows]
        return [row for _, row in numbered_rows], decide_data(summary, entry)

    def sample(self, items: Sequence[T]) -> list[T]:
        """Return the items that the limit keeps."""
        return [items[i] for i in sample_rows(len(items), self.limit, self.eval_set.name)]

    def labelled_pairs(self, stem: str) -> list[tuple[str, str]]:
        """Read the (text, label) pairs of a file; none if it has faults."""
        rows: list[Row] = []
        with self.faults.collect():
            rows, _ = self.rows(stem, "classification")
            if not rows or rows[0].label is None:
                raise DataError(
                    f"{format_path(self.file(stem))}: the rows need the columns text and label"
                )
        return [(row.anchor, str(row.label)) for row in rows]

    def sample_labelled(self, pairs: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
        """Return the texts and the labels of the (text, label) pairs that the limit keeps."""
        labels = [label for _, label in pairs]
        sample = sample_labelled(labels, self.limit, self.eval_set.name)
        return [pairs[i][0] for i in sample], [labels[i] for i in sample]


def _load_pairs(half: _HalfReader) -> PairData:
    rows, decisions = half.rows(half.split, half.eval_set.task)
    for where, row in zip(half.places[half.split], rows, strict=True):
        if len(row.positives) != 1 or row.positive_scores is None:
            half.faults.add(f"{where}: a pair needs one other text and one score")
    half.faults.require_none()
    examples = half.sample([decisions.example(row) for row in rows])
    return PairData(
        [example.anchor for example in examples],
        [example.positives[0] for example in examples],
        [(example.positive_scores or (0.0,))[0] for example in examples],
    )


def _load_classification(half: _HalfReader) -> ClassificationData:
    if half.eval_set.rows is None or half.eval_set.rows.fitted is not None:
        fitted, scored = half.labelled_pairs("train"), half.labelled_pairs(half.split)
        half.faults.require_none()
    else:
        labelled = half.labelled_pairs(half.split)
        half.faults.require_none()
        pairs = [*dict.fromkeys(labelled)]
        fitted, scored = _halve_labels(pairs, half.eval_set.name)
        counts = Counter(label for _, label in pairs)
        if single := [f"'{label}'" for label, count in counts.items() if count < 2]:
            half.faults.add(
                f"{format_path(half.file(half.split))}: there is only one text of label "
                f"{join_some(single)}, and a classifier needs one to be fitted on and one to be scored on; "
                "remove it, or add texts"
            )
            half.faults.require_none()
    _find_unfitted(half, fitted, scored)
    return ClassificationData(*half.sample_labelled(fitted), *half.sample_labelled(scored))


def _find_unfitted(
    half: _HalfReader, fitted: Sequence[tuple[str, str]], scored: Sequence[tuple[str, str]]
) -> None:
    """Require that a classifier is fitted on several labels, and on a text of each scored label."""
    labels = {label for _, label in fitted}
    place = format_path(half.file("train"))
    if len(labels) == 1:
        half.faults.add(f"{place}: all rows have one label; a classifier needs texts of another")
    if unfitted := dict.fromkeys(f"'{label}'" for _, label in scored if label not in labels):
        half.faults.add(
            f"{format_path(half.file(half.split))}: no text of {place} has the label "
            f"{join_some(unfitted)}, so that no classifier can give it; correct it, or add texts"
        )
    half.faults.require_none()


def _halve_labels(
    pairs: Sequence[tuple[str, str]], name: str
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Divide (text, label) pairs into two parts with half of each label, by hashes of the texts."""
    pairs_by_label: dict[str, list[tuple[str, str]]] = {}
    for pair in sorted(pairs, key=lambda pair: even_place(name, *pair)):
        pairs_by_label.setdefault(pair[1], []).append(pair)
    halves = [
        (group[: len(group) // 2], group[len(group) // 2 :]) for group in pairs_by_label.values()
    ]
    return [p for first, _ in halves for p in first], [p for _, second in halves for p in second]


def _load_clustering(half: _HalfReader) -> ClusteringData:
    pairs = half.labelled_pairs(half.split)
    half.faults.require_none()
    return ClusteringData(*half.sample_labelled(pairs))


def _load_reranking(half: _HalfReader) -> RerankingData:
    rows, _ = half.rows(half.split, "reranking")
    for where, row in zip(half.places[half.split], rows, strict=True):
        if not row.negatives:
            half.faults.add(f"{where}: a row to rerank needs negatives; add them or remove the row")
    half.faults.require_none()
    rows = half.sample(rows)
    return RerankingData(
        [row.anchor for row in rows],
        [row.positives for row in rows],
        [row.negatives for row in rows],
    )


def _load_retrieval(half: _HalfReader) -> EvalData:
    if (source := half.eval_set.rows) is not None:
        documents, rows = SearchedDocuments(""), list[Row]()
        with half.faults.collect():
            if source.documents is not None:
                documents = read_searched_documents(
                    source.documents, half.readers, half.media, half.faults
                )
        with half.faults.collect():
            rows, _ = half.rows(half.split, "retrieval")
        if not rows or half.faults.hidden:  # else unknown ids are told too
            half.faults.require_none()
        return join_rows(
            zip(half.places[half.split], rows, strict=True),
            documents,
            half.faults,
            name=half.eval_set.name,
            limit=half.limit,
        )
    return read_retrieval(
        half.eval_set,
        corpus=half.plain("corpus"),
        queries=half.plain("queries"),
        media=half.media,
        split=half.split,
        limit=half.limit,
        faults=half.faults,
    )


_LOADERS: Mapping[str, Callable[[_HalfReader], EvalData]] = {
    "retrieval": _load_retrieval,
    "reranking": _load_reranking,
    "classification": _load_classification,
    "clustering": _load_clustering,
    "sts": _load_pairs,
    "pair_classification": _load_pairs,
}
