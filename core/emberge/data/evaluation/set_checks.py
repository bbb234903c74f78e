"""Checks of evaluation sets before a run: missing files, and every fault of sets up to 256 MB."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from emberge.contracts import DataRef, Preflight, Reader, Split
from emberge.data.data_sources import PARTS
from emberge.data.entry import DataEntry, EvalRows, EvalSet, EvalSource
from emberge.data.evaluation.eval_sets import lacking_half, list_set_faults
from emberge.data.evaluation.eval_source import pick_eval_sets, pick_named
from emberge.data.first_rows import check_entries
from emberge.errors import DataError

_WHOLE = 256 << 20  # bytes of files that are read whole before a run


def check_eval_sets(
    context: Preflight, source: EvalSource, split: Split = "test"
) -> tuple[list[EvalSet], list[str]]:
    """Return the evaluation sets that a step will read, and their problems.

    A set is read whole, unless its files have more than _WHOLE bytes; of larger ones, only the first rows.

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
    missing = lacking_half(eval_set, split, context.readers)
    if missing is not None:
        yield missing
        return
    statuses = [(str(file), file.stat()) for file in _list_files(eval_set)]
    stamps = tuple((name, status.st_size, status.st_mtime_ns) for name, status in statuses)
    is_read = sum(status.st_size for _, status in statuses) <= _WHOLE
    problems = () if eval_set.rows is None else _show_first_rows(eval_set, eval_set.rows, context)
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
    checked = check_entries([entry], readers=context.readers, resolve=_locate)
    for head in checked.heads:
        context.note(f"evaluation: {head.title}", head.lines)
    return [str(problem) for problem in checked.problems]


@functools.lru_cache(maxsize=256)
def _read_whole(
    eval_set: EvalSet,
    split: Split,
    readers: tuple[Reader, ...],
    stamps: tuple[tuple[str, int, int], ...],  # noqa: ARG001 - it ages the memory
) -> Sequence[str]:
    return list_set_faults(eval_set, split, readers)


def _list_files(eval_set: EvalSet) -> list[Path]:
    if eval_set.rows is not None:
        return [file for _, file in eval_set.files()]
    # Only these two folders are listed, as others below them may contain anything.
    folders = (eval_set.folder, eval_set.folder / "qrels")
    listed = (file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir()))
    return [file for file in listed if file.is_file()]


def _locate(reference: DataRef) -> Path:
    return Path(reference.text)
