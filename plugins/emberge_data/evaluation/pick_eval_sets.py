"""Evaluation sets of a catalogue, a folder in BEIR's layout, or a file of rows; and their check."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge import (
    AnyNumber,
    Columns,
    DataEntry,
    DataError,
    DataRef,
    Preflight,
    Reader,
    TaskKind,
    suggest,
)
from emberge.contracts import Domain, Split
from emberge.data import (
    EVAL_PATH_NAMES,
    HELD_OUT_PARTS,
    ListedEvalSet,
    build_instruction_prompt,
    build_set,
    check_entries,
    find_reader,
    list_held_out_sets,
    load_catalogue,
    pick_training_sets,
    read_task,
)
from emberge.wording import format_path

from emberge_data.document_rows import DOCUMENTS_FILE
from emberge_data.evaluation.eval_set import EvalRows, EvalSet
from emberge_data.evaluation.read_eval_sets import explain_missing_part, load_eval_set

_DESCRIPTION_OPTIONS = ("name", "domain", "instruction", "prompt")
_ROWS_OPTIONS = ("columns", "task", "documents", "score_range")
_WHOLE_BYTES = 256 << 20
"""Largest number of bytes of a set that is read whole before a run."""


@dataclass(frozen=True, kw_only=True)
class EvalSource:
    """Evaluation sets: a catalogue's, a folder in BEIR's layout, a file of rows, a part of a step's result.

    In rows with the columns of training sets, the queries are the distinct anchors, the corpus is all
    distinct positives and negatives, and the positives are relevant. Of rows with a label, half of each label
    is used to fit a classifier, and the other half is scored.
    """

    path: DataRef
    """A catalogue, a folder with `corpus`, `queries` and `qrels`, a file of rows, or a data step, whose part
    `split` is read."""
    only: tuple[str, ...] = ()
    """Names of the catalogue's sets; by default all sets."""
    name: str | None = None
    """Name of a set that no catalogue lists; by default the name of its file or folder."""
    columns: Columns = field(default_factory=Columns)
    """Columns of a file of rows; by default the usual names are recognised."""
    task: TaskKind | None = None
    """Kind of task of a file of rows; by default sts if there is a score, classification if there is a label,
    else retrieval."""
    documents: DataRef | None = None
    """File of documents to search in addition to the texts of the rows. Rows of documents need a text, and
    may have an id and a title; a `.txt` file has a document per line. Positives may be such ids. Of a data
    step, the passages of `generate_queries`, or the documents of all rows of the set of this name."""
    domain: Domain | None = None
    """Domain of a set that no catalogue lists; by default "in"."""
    instruction: str = ""
    """Instruction for the queries of a set that no catalogue lists."""
    prompt: str | None = None
    """Text put before the queries of a set that no catalogue lists; by default made from `instruction`."""
    score_range: tuple[AnyNumber, AnyNumber] | None = None
    """Lowest and highest score of a file of rows; they become 0 and 1."""


def pick_eval_sets(
    source: EvalSource,
    *,
    readers: Sequence[Reader] = (),
    resolve: Callable[[DataRef], Path | None] = lambda reference: reference.folder / reference.text,
    split: Split = "test",
) -> list[EvalSet]:
    """Return the evaluation sets of a source, without their texts.

    Of a file of rows, the columns of the first row are read, unless the source names the task. The list is
    empty if `resolve` returns None for the source, as for a step that has not run. A catalogue without
    evaluation sets means the sets of its part `split`.

    Raises:
        DataError: if there is no such set or file, its columns cannot be understood, or options do not fit.
    """
    path = resolve(source.path)
    if path is None:
        return []
    documents = None if source.documents is None else resolve(source.documents)
    if path.suffix in (".yaml", ".yml") or (path / "datasets.yaml").is_file():
        sets = _list_catalogue_sets(source, path, split, documents, readers)
        return _pick_named(sets, source.only, format_path(path))
    if source.only:
        raise DataError(f"{format_path(path)}: `only` picks sets of a catalogue, and this is none")
    if path.is_dir():
        return [_build_folder_set(source, path)]
    return [_build_rows_set(source, path, documents, readers)]


def _pick_named(sets: Sequence[EvalSet], only: Sequence[str], label: str) -> list[EvalSet]:
    """Return all sets, or those in `only` in that order."""
    sets_by_name = {eval_set.name: eval_set for eval_set in sets}
    for name in only:
        if name not in sets_by_name:
            hint = suggest(name, sets_by_name) or f"; there are {', '.join(sets_by_name)}"
            raise DataError(f"{label}: there is no evaluation set '{name}'{hint}")
    return [sets_by_name[name] for name in (only or tuple(sets_by_name))]


def _refuse_options(source: EvalSource, names: Sequence[str], path: Path, noun: str) -> None:
    defaults = EvalSource(path=source.path)
    for name in names:
        if getattr(source, name) != getattr(defaults, name):
            raise DataError(
                f"{format_path(path)}: `{name}` describes a file of rows, and this is {noun}; leave it out"
            )


def _list_catalogue_sets(
    source: EvalSource, path: Path, split: Split, documents: Path | None, readers: Sequence[Reader]
) -> list[EvalSet]:
    catalogue = load_catalogue(path)
    if catalogue.eval:
        names = (*_DESCRIPTION_OPTIONS, *_ROWS_OPTIONS)
        _refuse_options(source, names, path, "a catalogue that describes its sets")
        return [_read_listed_set(listed) for listed in catalogue.eval]
    _refuse_options(source, ("name", "columns", "task", "score_range"), path, "a catalogue")
    place = format_path(catalogue.path)
    try:
        entries = list_held_out_sets(catalogue, split)
    except DataError:
        noun, remedy = HELD_OUT_PARTS[split]
        raise DataError(
            f"{place}: the catalogue has no evaluation sets (`eval`) and no {noun} (`{split}`); {remedy}"
        ) from None
    fitted = {entry.name: entry.path for entry in catalogue.train if entry.path is not None}
    sets = []
    for entry in entries:
        if entry.path is None:
            raise DataError(
                f"{place}: {entry.name} is a set of the hub, which cannot be scored; save its rows to a file"
            )
        sets.append(_build_part_set(source, entry, fitted.get(entry.name), documents, readers))
    return sets


def _read_listed_set(listed: ListedEvalSet) -> EvalSet:
    """Return a catalogue's set, with the defaults of its task."""
    facts = listed.facts
    eval_set = build_set(EvalSet, facts, EVAL_PATH_NAMES, listed.folder)
    if eval_set.task == "text":
        message = "single texts cannot be scored; list them under train"
        raise DataError(f"{facts.locate('task')}: {message}")
    defaults: dict[str, Any] = {"folder": listed.folder, "where": facts.where}
    if "prompt" not in facts.entries:
        defaults["prompt"] = build_instruction_prompt(eval_set.instruction)
    if "symmetric" not in facts.entries:
        defaults["symmetric"] = eval_set.task not in ("retrieval", "reranking")
    return dataclasses.replace(eval_set, **defaults)


def _build_part_set(
    source: EvalSource,
    entry: DataEntry,
    fitted: DataRef | None,
    documents: Path | None,
    readers: Sequence[Reader],
) -> EvalSet:
    """Return the evaluation set of a file in the form of training sets; `fitted` is its training part."""
    assert entry.path is not None
    path = Path(entry.path.text)
    documents = documents and _find_documents(documents, str(entry.name))
    task = entry.task or read_task(path, entry.columns, readers)
    if documents is None and entry.documents is not None:
        documents = Path(entry.documents)
    training_file = Path(fitted.text) if fitted and task == "classification" else None
    rows = EvalRows(path=path, columns=entry.columns, documents=documents, fitted=training_file)
    described = dataclasses.replace(
        source,
        name=entry.name,
        instruction=source.instruction or entry.instruction,
        prompt=entry.prompt if source.prompt is None else source.prompt,
        score_range=entry.score_range,
    )
    eval_set = _build_set(described, task, path.parent, rows)
    symmetric = eval_set.symmetric if entry.symmetric is None else entry.symmetric
    return dataclasses.replace(
        eval_set, language=entry.language or eval_set.language, symmetric=symmetric
    )


def _find_documents(path: Path, name: str) -> Path:
    """Return a file of documents; of a data step's folder the passages, or the rows of its set `name`."""
    if not path.is_dir() or (path / DOCUMENTS_FILE).is_file():
        return path / DOCUMENTS_FILE if path.is_dir() else path
    catalogue = load_catalogue(path)
    entry = pick_training_sets(catalogue, (name,) if len(catalogue.train) > 1 else ())[0]
    if entry.path is None:
        raise DataError(
            f"{format_path(path)}: the documents of {name} are on the hub; save its rows"
        )
    return Path(entry.path.text)


def _build_folder_set(source: EvalSource, path: Path) -> EvalSet:
    stems = {file.name.partition(".")[0] for file in path.iterdir()}
    if not {"corpus", "queries"} <= stems:
        raise DataError(
            f"{format_path(path)}: the folder has neither datasets.yaml nor corpus, queries and qrels, as "
            "BEIR has; name a file of rows in it, or write a catalogue"
        )
    _refuse_options(source, _ROWS_OPTIONS, path, "a folder in BEIR's layout")
    named_source = dataclasses.replace(source, name=source.name or path.resolve().name)
    return _build_set(named_source, "retrieval", path, None)


def _build_rows_set(
    source: EvalSource, path: Path, documents: Path | None, readers: Sequence[Reader]
) -> EvalSet:
    if not path.is_file():
        raise DataError(f"{format_path(path)}: there is no such file of rows")
    suffixes = find_reader(path, readers).suffixes
    suffix = max((s for s in suffixes if path.name.lower().endswith(s)), key=len)
    task = source.task or read_task(path, source.columns, readers)
    if task == "text":
        raise DataError(
            f"{format_path(path)}:1: single texts cannot be scored; add a column with what belongs to each "
            "text (such as positive, score or label), or name one in `columns`"
        )
    if documents is not None and task != "retrieval":
        raise DataError(
            f"{format_path(path)}: only retrieval searches `documents`, and these rows are read as {task}; "
            "leave documents out, or write task: retrieval"
        )
    named_source = dataclasses.replace(source, name=source.name or path.name[: -len(suffix)])
    documents = documents and _find_documents(documents, str(named_source.name))
    rows = EvalRows(path=path, columns=source.columns, documents=documents)
    return _build_set(named_source, task, path.parent, rows)


def _build_set(source: EvalSource, task: TaskKind, folder: Path, rows: EvalRows | None) -> EvalSet:
    prompt = build_instruction_prompt(source.instruction)
    if source.prompt is not None:
        prompt = source.prompt.replace("{instruction}", source.instruction)
    return EvalSet(
        name=source.name or "",
        folder=folder,
        task=task,
        symmetric=task not in ("retrieval", "reranking"),
        domain=source.domain or "in",
        instruction=source.instruction,
        prompt=prompt,
        score_range=source.score_range,
        rows=rows,
    )


def check_eval_sets(
    context: Preflight, source: EvalSource, split: Split = "test"
) -> tuple[list[EvalSet], list[str]]:
    """Return the evaluation sets that a step will read, and their problems.

    A set is read whole, unless its files have more than _WHOLE_BYTES; of larger ones, only the first rows.
    If an earlier step has not made the sets yet, the sets that it announces are returned, if any.
    """
    try:
        sets = pick_eval_sets(source, readers=context.readers, resolve=context.data, split=split)
        if sets or source.path.step is None:
            return sets, [text for each in sets for text in _find_problems(each, split, context)]
        return _list_announced_sets(context, source, split)
    except DataError as error:
        return [], [str(error)]


def _list_announced_sets(
    context: Preflight, source: EvalSource, split: Split
) -> tuple[list[EvalSet], list[str]]:
    """Return the sets that an earlier step announces, and the problem if these have no such part."""
    label = f"${source.path.step}"
    expected = context.expected(source.path)
    if expected is None:
        return [], []
    announced_sets = [EvalSet(name=n, folder=Path(), task=t) for n, t in expected.sets.items()]
    sets = _pick_named(announced_sets, source.only, label) if announced_sets else []
    if expected.splits is None or split in expected.splits:
        return sets, []
    noun, remedy = HELD_OUT_PARTS[split]
    others = " or ".join(f"split: {name}" for name in expected.splits)
    return sets, [f"{label} makes no {noun}; {f'write {others}, or ' if others else ''}{remedy}"]


def _find_problems(eval_set: EvalSet, split: Split, context: Preflight) -> Iterator[str]:
    missing = explain_missing_part(eval_set, split, context.readers)
    if missing is not None:
        yield missing
        return
    statuses = [(str(file), file.stat()) for file in _list_files(eval_set)]
    stamps = tuple((name, status.st_size, status.st_mtime_ns) for name, status in statuses)
    problems = () if eval_set.rows is None else _show_first_rows(eval_set, eval_set.rows, context)
    is_read = sum(status.st_size for _, status in statuses) <= _WHOLE_BYTES
    yield from _read_whole(eval_set, split, tuple(context.readers), stamps) if is_read else problems


def _show_first_rows(eval_set: EvalSet, rows: EvalRows, context: Preflight) -> list[str]:
    """Note the first example of a set of rows, and return the problems of the first rows."""
    entry = DataEntry(
        path=DataRef(str(rows.path)),
        name=eval_set.name,
        columns=rows.columns,
        task=eval_set.task,
        score_range=eval_set.score_range,
    )
    checked = check_entries(
        [entry], readers=context.readers, resolve=lambda reference: Path(reference.text)
    )
    for first_rows in checked.first_rows:
        context.note(f"evaluation: {first_rows.title}", first_rows.lines)
    return [str(problem) for problem in checked.problems]


@functools.lru_cache(maxsize=256)
def _read_whole(
    eval_set: EvalSet,
    split: Split,
    readers: tuple[Reader, ...],
    stamps: tuple[tuple[str, int, int], ...],  # noqa: ARG001 - a changed file is read again
) -> Sequence[str]:
    try:
        load_eval_set(eval_set, readers=readers, split=split)
    except DataError as error:
        return str(error).splitlines()
    return []


def _list_files(eval_set: EvalSet) -> list[Path]:
    if eval_set.rows is not None:
        return [file for _, file in eval_set.list_files()]
    # Only these two folders are listed, as others below them may contain anything.
    folders = (eval_set.folder, eval_set.folder / "qrels")
    listed = (file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir()))
    return [file for file in listed if file.is_file()]
