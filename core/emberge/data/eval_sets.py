"""Evaluation sets of a catalogue: selected, checked, and read from their folders, including BEIR's format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from emberge.contracts import (
    MEDIA_KINDS,
    BadRow,
    DataRef,
    Preflight,
    Reader,
    Split,
    TaskKind,
    plain_text,
)
from emberge.data.catalogue import load_catalogue
from emberge.data.data_sources import find_reader
from emberge.data.entry import DataEntry, EvalSet
from emberge.data.eval_data import (
    ClassificationData,
    ClusteringData,
    EvalData,
    PairData,
    RerankingData,
    RetrievalData,
)
from emberge.data.file_summary import (
    DataDecisions,
    FileSummary,
    decide_data,
    format_path,
    parse_rows,
)
from emberge.data.rows.line_files import read_text_lines
from emberge.data.rows.media_values import MediaValues
from emberge.data.rows.row_parser import Row
from emberge.data.sampling import even_place, sample_labelled, sample_rows
from emberge.errors import DataError, suggest
from emberge.media import MediaFolder
from emberge.wording import printable


def pick_eval_sets(path: Path, only: Sequence[str] = ()) -> list[EvalSet]:
    """Return all evaluation sets of a catalogue or, if `only` is given, the sets that it names.

    Raises:
        DataError: if the catalogue has no evaluation sets, or lacks a name in `only`.
    """
    catalogue = load_catalogue(path)
    if not catalogue.eval:
        raise DataError(f"{catalogue.path}: the catalogue has no evaluation sets (`eval`)")
    return _pick_named(catalogue.eval, only, str(catalogue.path))


def _pick_named(sets: Sequence[EvalSet], only: Sequence[str], label: str) -> list[EvalSet]:
    sets_by_name = {eval_set.name: eval_set for eval_set in sets}
    for name in only:
        if name not in sets_by_name:
            hint = suggest(name, sets_by_name) or f"; there are {', '.join(sets_by_name)}"
            raise DataError(f"{label}: there is no evaluation set '{name}'{hint}")
    return [sets_by_name[name] for name in (only or tuple(sets_by_name))]


def check_eval_sets(
    context: Preflight, reference: DataRef, only: Sequence[str] = (), split: Split = "test"
) -> tuple[list[EvalSet], list[str]]:
    """Return the evaluation sets that a step will read, and their problems, without reading their rows.

    If an earlier step has not made the sets yet, the sets that it announces are returned, if any.
    """
    try:
        path = context.data(reference)
        if path is not None:
            sets = pick_eval_sets(path, only)
            return sets, [fault for eval_set in sets if (fault := lacking_half(eval_set, split))]
        expected = context.expected(reference) if reference.step is not None else None
        if expected is None or not expected.sets:
            return [], []
        label = f"${reference.step}"
        announced_sets = [EvalSet(name=n, folder=Path(), task=t) for n, t in expected.sets.items()]
        sets = _pick_named(announced_sets, only, label)
    except DataError as error:
        return [], [str(error)]
    problem_text = f"{label} makes no development halves; write split: test"
    return sets, [problem_text] if split == "dev" else []


def lacking_half(one: EvalSet, split: Split) -> str | None:
    """Return why a half (`test` or `dev`) of a set cannot be read, without reading it; None if it can."""
    if not one.folder.is_dir():
        return f"{one.where}: there is no folder {one.folder}"
    # Only these two folders are listed, as others below them may contain anything.
    file_names = [
        file.relative_to(one.folder).as_posix()
        for folder in (one.folder, one.folder / "qrels")
        for file in (folder.iterdir() if folder.is_dir() else ())
    ]
    judgements = ("qrels." if split == "test" else f"qrels_{split}.", f"qrels/{split}.")
    starts_by_file: dict[str, tuple[str, ...]] = {f"{split} file": (f"{split}.",)}
    if one.task == "classification":
        starts_by_file["train file"] = ("train.",)
    if one.task == "retrieval":
        starts_by_file = {
            "corpus": ("corpus.",),
            "queries": ("queries.",),
            f"{split} qrels": judgements,
        }
    for word, starts in starts_by_file.items():
        if not any(name.startswith(starts) for name in file_names):
            return f"{one.where}: {one.folder} has no {word}"
    return None


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

    `limit` keeps an even sample of queries, pairs or texts that depends only on the set's name. A retrieval
    set keeps the documents that belong to these queries, and as many other documents. Of labelled texts,
    whole labels are left out, so that each remaining label has several texts. Images and clips are references
    within the texts; their bytes are kept in `store` or, if it is None, until the process ends.

    Raises:
        DataError: if a file is missing or a row cannot be used; names file and line.
    """
    if not eval_set.folder.is_dir():
        raise DataError(
            f"{_describe_place(eval_set)}{format_path(eval_set.folder)}: there is no such folder"
        )
    return _LOADERS[eval_set.task](_HalfReader(eval_set, readers, split, limit, store))


def _describe_place(eval_set: EvalSet) -> str:
    return f"{eval_set.where}: " if eval_set.where else ""


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
        self.media = MediaValues(MediaFolder(store, eval_set.folder))

    def file(self, stem: str) -> Path:
        """Return the file in the folder whose name is `stem` and a suffix of a known format."""
        folder = self.eval_set.folder
        for reader in self.readers:
            for suffix in reader.suffixes:
                if (folder / f"{stem}{suffix}").is_file():
                    return folder / f"{stem}{suffix}"
        listed_files = (
            printable(", ".join(sorted(path.name for path in folder.iterdir())), 200) or "nothing"
        )
        raise DataError(
            f"{_describe_place(self.eval_set)}{format_path(folder)} has no {stem} file for a set of kind "
            f"{self.eval_set.task}; it has {listed_files}"
        )

    def plain(self, stem: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield `file:line` and each row of a file."""
        path = self.file(stem)
        file_label = format_path(path)
        for line, row in find_reader(path, self.readers).rows(path):
            if isinstance(row, BadRow):
                raise DataError(f"{file_label}:{line}: {printable(row.message)}")
            yield f"{file_label}:{line}", row

    def rows(self, stem: str, task: TaskKind) -> tuple[list[Row], DataDecisions]:
        """Read rows in the format of training files, with the same checks."""
        path = self.file(stem)
        entry = DataEntry(task=task, score_range=self.eval_set.score_range, prompt="")
        summary = FileSummary(format_path(path))
        read = find_reader(path, self.readers).rows(path)
        rows = list(parse_rows(read, entry, summary, self.media))
        return rows, decide_data(summary, entry)

    def sample(self, items: Sequence[T]) -> list[T]:
        """Return the items that the limit keeps."""
        return [items[i] for i in sample_rows(len(items), self.limit, self.eval_set.name)]

    def labelled(self, stem: str) -> tuple[list[str], list[str]]:
        """Read the texts and labels of a file."""
        rows, _ = self.rows(stem, "classification")
        labels = [str(row.label) for row in rows]
        if not rows or rows[0].label is None:
            raise DataError(
                f"{format_path(self.file(stem))}: the rows need the columns text and label"
            )
        sample = sample_labelled(labels, self.limit, self.eval_set.name)
        return [rows[i].anchor for i in sample], [labels[i] for i in sample]


def _load_pairs(half: _HalfReader) -> PairData:
    rows, decisions = half.rows(half.split, half.eval_set.task)
    subsets = []
    for row, (where, fields) in zip(rows, half.plain(half.split), strict=True):
        subset = fields.get("subset")
        if isinstance(subset, bool) or not isinstance(subset, str | int | None):
            raise DataError(f"{where}: 'subset' is a word, not a {type(subset).__name__}")
        subsets.append(subset)
        if len(row.positives) != 1 or row.positive_scores is None:
            raise DataError(f"{where}: a pair needs one other text and one score")
    examples = half.sample([decisions.example(row) for row in rows])
    sample = half.sample(subsets)
    return PairData(
        [example.anchor for example in examples],
        [example.positives[0] for example in examples],
        [(example.positive_scores or (0.0,))[0] for example in examples],
        [str(subset) for subset in sample] if all(s is not None for s in subsets) else None,
    )


def _load_classification(half: _HalfReader) -> ClassificationData:
    return ClassificationData(*half.labelled("train"), *half.labelled(half.split))


def _load_clustering(half: _HalfReader) -> ClusteringData:
    return ClusteringData(*half.labelled(half.split))


def _load_reranking(half: _HalfReader) -> RerankingData:
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


def _load_retrieval(half: _HalfReader) -> EvalData:
    return read_retrieval(
        half.eval_set,
        corpus=half.plain("corpus"),
        queries=half.plain("queries"),
        media=half.media,
        split=half.split,
        limit=half.limit,
    )


_LOADERS: Mapping[str, Callable[[_HalfReader], EvalData]] = {
    "retrieval": _load_retrieval,
    "reranking": _load_reranking,
    "classification": _load_classification,
    "clustering": _load_clustering,
    "sts": _load_pairs,
    "pair_classification": _load_pairs,
}


_GRADE = re.compile(r"-?[0-9]{1,9}")
PlacedRows = Iterable[tuple[str, Mapping[str, Any]]]


def read_retrieval(
    eval_set: EvalSet,
    *,
    corpus: PlacedRows,
    queries: PlacedRows,
    split: str,
    limit: int | None,
    media: MediaValues,
) -> RetrievalData:
    """Join documents, the queries with a judgement in this half, and the judgements.

    Raises:
        DataError: if a row has no id or text, an id occurs twice, or a judgement names an unknown id.
    """
    path = _find_judgement_file(eval_set, split)
    judgements = _read_judgements(path)
    texts = _read_texts(queries, media, titled=False)
    documents = _read_texts(corpus, media, titled=True)
    relevant: dict[str, dict[str, int]] = {}
    for line, (query, document, grade) in judgements:
        for kind, texts_by_id, name in (("query", texts, query), ("document", documents, document)):
            if name not in texts_by_id:
                raise DataError(
                    f"{format_path(path)}:{line}: there is no {kind} '{printable(name, 80)}'; remove the line"
                )
        if relevant.setdefault(query, {}).setdefault(document, grade) != grade:
            raise DataError(
                f"{format_path(path)}:{line}: '{printable(document, 80)}' was given another grade for "
                f"'{printable(query, 80)}' before; keep one of the lines"
            )
    names = list(relevant)
    names = [names[i] for i in sample_rows(len(names), limit, eval_set.name)]
    relevant = {name: relevant[name] for name in names}
    if limit is not None:
        documents = _reduce_corpus(documents, relevant, limit, eval_set.name)
    return RetrievalData(documents, {name: texts[name] for name in names}, relevant)


def _reduce_corpus(
    documents: dict[str, str], relevant: Mapping[str, Mapping[str, int]], limit: int, name: str
) -> dict[str, str]:
    needed = {document for grades in relevant.values() for document in grades}
    other_documents = sorted(
        (d for d in documents if d not in needed), key=lambda d: even_place(name, d)
    )
    names = needed.union(other_documents[:limit])
    return {document: text for document, text in documents.items() if document in names}


def _find_judgement_file(eval_set: EvalSet, split: str) -> Path:
    file_name = "qrels.tsv" if split == "test" else f"qrels_{split}.tsv"
    for path in (eval_set.folder / file_name, eval_set.folder / "qrels" / f"{split}.tsv"):
        if path.is_file():
            return path
    raise DataError(
        f"{format_path(eval_set.folder)} has no {file_name} with the judgements of its {split} half"
    )


def _read_judgements(path: Path) -> list[tuple[int, tuple[str, str, int]]]:
    judgements = []
    for line, text in read_text_lines(path):
        cells = text.split("\t")
        if not text.strip() or (line == 1 and cells[-1] == "score"):
            continue
        if len(cells) != 3 or not _GRADE.fullmatch(cells[2].strip()):
            raise DataError(
                f"{format_path(path)}:{line}: expected query, document and a whole number between tabs"
            )
        judgements.append((line, (cells[0], cells[1], int(cells[2]))))
    if not judgements:
        raise DataError(f"{format_path(path)}: there are no judgements")
    return judgements


def _read_texts(rows: PlacedRows, media: MediaValues, *, titled: bool) -> dict[str, str]:
    texts: dict[str, str] = {}
    for where, row in rows:
        name, text = row.get("_id"), _read_text(where, row, media)
        title = row.get("title") if titled else None
        title = "" if title is None else title
        if not isinstance(text, str) or not isinstance(title, str):
            columns = printable(", ".join(row), 200)
            raise DataError(
                f"{where}: expected _id and text (columns: {columns}); image or audio may be in "
                "the text's place"
            )
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise DataError(
                f"{where}: the row needs an _id that is text or a whole number, not {printable(name, 40)}"
            )
        if str(name) in texts:
            raise DataError(
                f"{where}: the id '{printable(name, 80)}' was given before; ids are unique"
            )
        joined_text = f"{plain_text(title)} {text}".strip()
        if not joined_text:
            raise DataError(f"{where}: the text is empty or only white space; fill or remove it")
        texts[str(name)] = joined_text
    return texts


def _read_text(where: str, row: Mapping[str, Any], media: MediaValues) -> Any:
    """Return a row's text with its media, from the text column or else from the media columns."""
    text = row.get("text")
    media_columns: dict[str, Any] = {
        kind: row[kind] for kind in MEDIA_KINDS if row.get(kind) not in (None, "")
    }
    try:
        if isinstance(text, Mapping):
            return media.input(text, "text")
        if media_columns:
            return media.input(
                media_columns | ({"text": text} if text is not None else {}),
                next(iter(media_columns)),
            )
    except DataError as error:
        raise DataError(f"{where}: {printable(error)}") from None
    return plain_text(text) if isinstance(text, str) else text
