"""The texts of evaluation sets, read from the folder of a set or from rows in the format of training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from emberge import Columns, DataEntry, DataError, Example, Reader, TaskKind, hash_evenly
from emberge.data import MediaValues, read_examples
from emberge.media import MediaFolder
from emberge.wording import format_path, join_some

from emberge_data.document_rows import read_rows_with_places
from emberge_data.evaluation.eval_set import (
    ClassificationData,
    ClusteringData,
    EvalData,
    EvalSet,
    PairData,
    RerankingData,
)
from emberge_data.evaluation.retrieval_sets import (
    SearchedDocuments,
    find_judgement_file,
    join_rows,
    read_beir,
    read_searched_documents,
)

LabelledText = tuple[str, str]


def load_eval_set(
    eval_set: EvalSet,
    *,
    readers: Sequence[Reader],
    split: str = "test",
    media_hashes: set[str] | None = None,
) -> EvalData:
    """Read one part (`test` or `dev`) of an evaluation set; a set of rows is read whole.

    Images and clips are references within the texts; their bytes are kept until the process ends. Hashes of
    their content are added to `media_hashes`.

    Raises:
        DataError: if a file is missing, a row cannot be used, no document is relevant to a query, or ids,
            grades or rows contradict each other; has `file:line`.
    """
    _require_folder(eval_set)
    part = _PartReader(eval_set, readers, split)
    data = _LOADERS[eval_set.task](part)
    if media_hashes is not None:
        media_hashes |= part.media.hashes
    return data


def explain_missing_part(eval_set: EvalSet, split: str, readers: Sequence[Reader]) -> str | None:
    """Return why a part (`test` or `dev`) of a set cannot be read, without reading it; None if it can."""
    stems = {"retrieval": ["corpus", "queries"], "classification": ["train", split]}
    try:
        _require_folder(eval_set)
        part = _PartReader(eval_set, readers, split)
        for stem in stems.get(eval_set.task, [split]):
            part.find_file(stem)
        if eval_set.rows is None and eval_set.task == "retrieval":
            find_judgement_file(eval_set, split)
    except DataError as error:
        return str(error)
    return None


def _describe_place(eval_set: EvalSet) -> str:
    where = f"{eval_set.where}: " if eval_set.where else ""
    return f"{where}{format_path(eval_set.folder)}"


def _require_folder(eval_set: EvalSet) -> None:
    if not eval_set.folder.is_dir():
        raise DataError(f"{_describe_place(eval_set)}: there is no such folder")


class _PartReader:
    """Reader of one part of a set."""

    def __init__(self, eval_set: EvalSet, readers: Sequence[Reader], split: str) -> None:
        self.eval_set, self.readers, self.split = eval_set, readers, split
        self.media = MediaValues(MediaFolder(read_from=eval_set.folder))

    def find_file(self, stem: str) -> Path:
        """Return the file in the set's folder whose name is `stem` and a suffix of a known format.

        In a set of rows, that of "train" is the file to fit a classifier on, and any other is the rows' file.

        Raises:
            DataError: if there is none; the message has the files of the folder.
        """
        eval_set = self.eval_set
        if eval_set.rows is not None:
            fitted = eval_set.rows.fitted if stem == "train" else None
            path = fitted or eval_set.rows.path
            if not path.is_file():
                raise DataError(f"{format_path(path)}: there is no such file of rows")
            return path
        suffixes = (suffix for reader in self.readers for suffix in reader.suffixes)
        files = (eval_set.folder / f"{stem}{suffix}" for suffix in suffixes)
        if (file := next(filter(Path.is_file, files), None)) is not None:
            return file
        listed_files = join_some(sorted(path.name for path in eval_set.folder.iterdir()), 10)
        raise DataError(
            f"{_describe_place(eval_set)} has no {stem} file for a set of kind {eval_set.task}; it has "
            f"{listed_files or 'nothing'}"
        )

    def read_rows(self, stem: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Return an iterator over `file:line` and each row of a file."""
        return read_rows_with_places(self.find_file(stem), self.readers)

    def list_examples(self, stem: str, task: TaskKind) -> list[tuple[str, Example]]:
        """Read rows in the format of training files, each after its `file:line`, with the same checks."""
        path, rows = self.find_file(stem), self.eval_set.rows
        columns = Columns() if rows is None else rows.columns
        entry = DataEntry(columns=columns, task=task, score_range=self.eval_set.score_range)
        return [
            (f"{format_path(path)}:{number}", example)
            for number, example in read_examples(path, entry, self.readers, self.media)
        ]

    def read_labelled_texts(self, stem: str) -> list[LabelledText]:
        """Read the (text, label) pairs of a file."""
        examples = self.list_examples(stem, "classification")
        if examples[0][1].label is None:
            raise DataError(
                f"{format_path(self.find_file(stem))}: the rows need the columns text and label"
            )
        return [(example.anchor, str(example.label)) for _, example in examples]


def _load_pairs(part: _PartReader) -> PairData:
    rows = part.list_examples(part.split, part.eval_set.task)
    for where, row in rows:
        if len(row.positives) != 1 or row.positive_scores is None:
            raise DataError(f"{where}: a pair needs one other text and one score")
    return PairData(
        [row.anchor for _, row in rows],
        [row.positives[0] for _, row in rows],
        [(row.positive_scores or (0.0,))[0] for _, row in rows],
    )


def _load_classification(part: _PartReader) -> ClassificationData:
    rows = part.eval_set.rows
    if rows is None or rows.fitted is not None:
        fitted, scored = part.read_labelled_texts("train"), part.read_labelled_texts(part.split)
    else:
        fitted, scored = _divide_labels(
            [*dict.fromkeys(part.read_labelled_texts(part.split))], part
        )
    labels = {label for _, label in fitted}
    place = format_path(part.find_file("train"))
    if len(labels) == 1:
        raise DataError(f"{place}: all rows have one label; a classifier needs texts of another")
    if unfitted := dict.fromkeys(f"'{label}'" for _, label in scored if label not in labels):
        raise DataError(
            f"{format_path(part.find_file(part.split))}: no text of {place} has the label "
            f"{join_some(unfitted)}, so that no classifier can give it; correct it, or add texts"
        )
    return ClassificationData(*_transpose(fitted), *_transpose(scored))


def _transpose(pairs: Sequence[LabelledText]) -> tuple[list[str], list[str]]:
    return [text for text, _ in pairs], [label for _, label in pairs]


def _divide_labels(
    pairs: Sequence[LabelledText], part: _PartReader
) -> tuple[list[LabelledText], list[LabelledText]]:
    """Return half of the (text, label) pairs of each label, by hashes of the texts, and the other half."""
    counts = Counter(label for _, label in pairs)
    if single := [f"'{label}'" for label, count in counts.items() if count < 2]:
        place = format_path(part.find_file(part.split))
        raise DataError(
            f"{place}: there is only one text of label {join_some(single)}, "
            "and a classifier needs one to be fitted on and one to be scored on; remove it, or add texts"
        )
    by_label: dict[str, list[LabelledText]] = {}
    for pair in sorted(pairs, key=lambda pair: hash_evenly(part.eval_set.name, *pair)):
        by_label.setdefault(pair[1], []).append(pair)
    fitted = [pair for group in by_label.values() for pair in group[: len(group) // 2]]
    return fitted, [pair for group in by_label.values() for pair in group[len(group) // 2 :]]


def _load_reranking(part: _PartReader) -> RerankingData:
    rows = part.list_examples(part.split, "reranking")
    for where, row in rows:
        if not row.negatives:
            raise DataError(f"{where}: a row to rerank needs negatives; add them or remove the row")
    return RerankingData(
        [row.anchor for _, row in rows],
        [row.positives for _, row in rows],
        [row.negatives for _, row in rows],
    )


def _load_retrieval(part: _PartReader) -> EvalData:
    if (source := part.eval_set.rows) is None:
        return read_beir(
            part.eval_set,
            corpus=part.read_rows("corpus"),
            queries=part.read_rows("queries"),
            media=part.media,
            split=part.split,
        )
    documents = SearchedDocuments("")
    if source.documents is not None:
        documents = read_searched_documents(source.documents, part.readers, part.media)
    return join_rows(part.list_examples(part.split, "retrieval"), documents)


_LOADERS: Mapping[str, Callable[[_PartReader], EvalData]] = {
    "retrieval": _load_retrieval,
    "reranking": _load_reranking,
    "classification": _load_classification,
    "clustering": lambda part: ClusteringData(*_transpose(part.read_labelled_texts(part.split))),
    "sts": _load_pairs,
    "pair_classification": _load_pairs,
}
