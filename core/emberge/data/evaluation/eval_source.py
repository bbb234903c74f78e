"""The evaluation sets of a source: a catalogue's, a folder in BEIR's layout, or a file of rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from emberge.contracts import BadRow, DataRef, Reader, Split, TaskKind
from emberge.data.catalogue import instruction_prompt, load_catalogue
from emberge.data.data_sources import PARTS, Resolve, find_reader, list_part
from emberge.data.entry import Catalogue, Columns, DataEntry, EvalRows, EvalSet, EvalSource
from emberge.data.file_summary import format_path
from emberge.data.rows.columns import LayoutError
from emberge.data.rows.row_parser import RowParser
from emberge.errors import DataError, suggest

_DESCRIPTIONS = ("name", "domain", "instruction", "prompt")
_OF_ROWS = ("columns", "task", "documents", "score_range")


def pick_eval_sets(
    source: EvalSource | Path,
    only: Sequence[str] = (),
    *,
    readers: Sequence[Reader] = (),
    resolve: Resolve = lambda reference: reference.folder / reference.text,
    split: Split = "test",
) -> list[EvalSet]:
    """Return the evaluation sets of a source, or of the catalogue or file at a path, without their texts.

    Of a file of rows, the columns of the first row are read, unless the source names the task. `only` are
    names of sets, if a path is given. The list is empty if `resolve` returns None for the source, as for a
    step that has not run. A catalogue without evaluation sets means the sets of its part `split`.

    Raises:
        DataError: if there is no such set or file, its columns cannot be understood, or options do not fit.
    """
    if isinstance(source, Path):
        source = EvalSource(path=DataRef(str(source)), only=tuple(only))
    path = resolve(source.path)
    if path is None:
        return []
    documents = None if source.documents is None else resolve(source.documents)
    if path.suffix in (".yaml", ".yml") or (path / "datasets.yaml").is_file():
        sets = _list_catalogue_sets(source, path, split, documents, readers)
        return pick_named(sets, source.only, format_path(path))
    if source.only:
        raise DataError(f"{format_path(path)}: `only` picks sets of a catalogue, and this is none")
    if path.is_dir():
        return [_build_folder_set(source, path)]
    return [_build_rows_set(source, path, documents, readers)]


def pick_named(sets: Sequence[EvalSet], only: Sequence[str], label: str) -> list[EvalSet]:
    """Return all sets, or those in `only` in that order.

    Raises:
        DataError: if there is no set of a name in `only`; the message begins with `label`.
    """
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


# ── catalogues ──────────────────────────────────────────────────────────────────────────────────


def _list_catalogue_sets(
    source: EvalSource,
    path: Path,
    split: Split,
    documents: Path | None,
    readers: Sequence[Reader],
) -> list[EvalSet]:
    catalogue = load_catalogue(path)
    if catalogue.eval:
        names = (*_DESCRIPTIONS, *_OF_ROWS)
        _refuse_options(source, names, path, "a catalogue that describes its sets")
        return list(catalogue.eval)
    _refuse_options(source, ("name", "columns", "task", "score_range"), path, "a catalogue")
    try:
        entries = list_part(catalogue, split)
    except DataError:
        raise DataError(
            f"{format_path(catalogue.path)}: the catalogue has no evaluation sets (`eval`) and no "
            f"{PARTS[split][0]} (`{split}`); {PARTS[split][1]}"
        ) from None
    return [_build_part_set(source, entry, catalogue, documents, readers) for entry in entries]


def _build_part_set(
    source: EvalSource,
    entry: DataEntry,
    catalogue: Catalogue,
    documents: Path | None,
    readers: Sequence[Reader],
) -> EvalSet:
    """Return the evaluation set of an entry in the form of training sets."""
    if entry.path is None:
        raise DataError(
            f"{format_path(catalogue.path)}: {entry.name} is a set of the hub, which cannot be scored; save "
            "its rows to a file"
        )
    path = Path(entry.path.text)
    task = entry.task or _find_task(path, find_reader(path, readers), entry.columns)
    if documents is None and entry.documents is not None:
        documents = Path(entry.documents)
    rows = EvalRows(path=path, columns=entry.columns, documents=documents)
    if task == "classification":
        fitted = [each.path for each in catalogue.train if each.name == entry.name and each.path]
        rows = dataclasses.replace(rows, fitted=Path(fitted[0].text) if fitted else None)
    described = dataclasses.replace(
        source,
        name=entry.name,
        instruction=source.instruction or entry.instruction,
        prompt=entry.prompt if source.prompt is None else source.prompt,
        score_range=entry.score_range,
    )
    return _build_set(described, task, rows, entry.language or "en", entry.symmetric)


# ── folders and files ───────────────────────────────────────────────────────────────────────────


def _build_folder_set(source: EvalSource, path: Path) -> EvalSet:
    stems = {file.name.partition(".")[0] for file in path.iterdir()}
    if not {"corpus", "queries"} <= stems:
        raise DataError(
            f"{format_path(path)}: the folder has neither datasets.yaml nor corpus, queries and qrels, as "
            "BEIR has; name a file of rows in it, or write a catalogue"
        )
    _refuse_options(source, _OF_ROWS, path, "a folder in BEIR's layout")
    built_set = _build_set(source, "retrieval", None)
    name = source.name or path.resolve().name
    return dataclasses.replace(built_set, name=name, folder=path)


def _build_rows_set(
    source: EvalSource, path: Path, documents: Path | None, readers: Sequence[Reader]
) -> EvalSet:
    if not path.is_file():
        raise DataError(f"{format_path(path)}: there is no such file of rows")
    reader = find_reader(path, readers)
    suffix = max((s for s in reader.suffixes if path.name.lower().endswith(s)), key=len)
    task = source.task or _find_task(path, reader, source.columns)
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
    name = source.name or path.name[: -len(suffix)]
    rows = EvalRows(path=path, columns=source.columns, documents=documents)
    return _build_set(dataclasses.replace(source, name=name), task, rows)


def _build_set(
    source: EvalSource,
    task: TaskKind,
    rows: EvalRows | None,
    language: str = "en",
    symmetric: bool | None = None,
) -> EvalSet:
    prompt = instruction_prompt(source.instruction)
    if source.prompt is not None:
        prompt = source.prompt.replace("{instruction}", source.instruction)
    return EvalSet(
        name=source.name or "",
        folder=Path() if rows is None else rows.path.parent,
        task=task,
        language=language,
        symmetric=task not in ("retrieval", "reranking") if symmetric is None else symmetric,
        domain=source.domain or "in",
        instruction=source.instruction,
        prompt=prompt,
        score_range=source.score_range,
        rows=rows,
    )


def _find_task(path: Path, reader: Reader, columns: Columns) -> TaskKind:
    """Return the kind of task that the columns of the first row mean.

    Raises:
        DataError: if the columns cannot be understood, or there is no row that can be read.
    """
    for line, row in reader.rows(path):
        if isinstance(row, BadRow):
            raise DataError(f"{format_path(path)}:{line}: {row.message}")
        try:
            layout = RowParser(columns).find_layout(row)
        except LayoutError as error:
            raise DataError(f"{format_path(path)}:{line}: {error}") from None
        if layout.single:
            return "text"
        if layout.labelled:
            return "classification"
        has_score = layout.score is not None and not layout.negatives
        return "sts" if has_score else "retrieval"
    raise DataError(f"{format_path(path)}: there are no rows; give a file with examples")
