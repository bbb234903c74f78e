"""Checks of evaluation sets before a run: missing files, unusable first rows and unusable judgements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from emberge.contracts import DataRef, Preflight, Split
from emberge.data.data_sources import PARTS
from emberge.data.entry import DataEntry, EvalRows, EvalSet, EvalSource
from emberge.data.evaluation.beir_files import read_judgements
from emberge.data.evaluation.eval_source import pick_eval_sets, pick_named
from emberge.data.evaluation.searched_documents import read_searched_documents
from emberge.data.first_rows import check_entries
from emberge.data.rows.media_values import MediaValues
from emberge.errors import DataError
from emberge.media import MediaFolder

_FIRST_DOCUMENTS = 100


def check_eval_sets(
    context: Preflight, source: EvalSource, split: Split = "test"
) -> tuple[list[EvalSet], list[str]]:
    """Return the evaluation sets that a step will read, and their problems; of rows, read only the first.

    If an earlier step has not made the sets yet, the sets that it announces are returned, if any.
    """
    try:
        sets = pick_eval_sets(source, readers=context.readers, resolve=context.data, split=split)
        if sets or source.path.step is None:
            faults = [fault for each in sets for fault in _find_faults(each, split, context)]
            return sets, faults
        return _list_announced_sets(context, source, split)
    except DataError as error:
        return [], [str(error)]


def _list_announced_sets(
    context: Preflight, source: EvalSource, split: Split
) -> tuple[list[EvalSet], list[str]]:
    """Return the sets that an earlier step announces, and the problem if these have no such half."""
    label = f"${source.path.step}"
    expected = context.expected(source.path)
    if expected is None:
        return [], []
    announced_sets = [EvalSet(name=n, folder=Path(), task=t) for n, t in expected.sets.items()]
    sets = pick_named(announced_sets, source.only, label) if announced_sets else []
    if expected.halves is None or split in expected.halves:
        return sets, []
    noun, remedy = PARTS[split]
    others = " or ".join(f"split: {half}" for half in expected.halves)
    return sets, [f"{label} makes no {noun}; {f'write {others}, or ' if others else ''}{remedy}"]


def _find_faults(eval_set: EvalSet, split: Split, context: Preflight) -> Iterator[str]:
    missing = lacking_half(eval_set, split)
    if missing is not None:
        yield missing
    elif eval_set.rows is not None:
        yield from _find_row_faults(eval_set, eval_set.rows, context)
    elif eval_set.task == "retrieval":
        try:
            read_judgements(eval_set, split)
        except DataError as error:
            yield str(error)


def _find_row_faults(eval_set: EvalSet, rows: EvalRows, context: Preflight) -> Iterator[str]:
    entry = DataEntry(
        path=DataRef(str(rows.path)),
        name=eval_set.name,
        columns=rows.columns,
        task=eval_set.task,
        score_range=eval_set.score_range,
    )
    checked = check_entries([entry], readers=context.readers, resolve=_locate)
    yield from (str(problem) for problem in checked.problems)
    for head in checked.heads:
        context.note(f"evaluation: {head.title}", head.lines)
    if rows.documents is not None:
        media = MediaValues(MediaFolder(beside=rows.path.parent))
        try:
            read_searched_documents(rows.documents, context.readers, media, _FIRST_DOCUMENTS)
        except DataError as error:
            yield str(error)


def _locate(reference: DataRef) -> Path:
    return Path(reference.text)


def lacking_half(one: EvalSet, split: Split) -> str | None:
    """Return why a half (`test` or `dev`) of a set cannot be read, without reading it; None if it can."""
    if one.rows is not None:
        return None if one.rows.path.is_file() else f"{one.name}: there is no {one.rows.path}"
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
