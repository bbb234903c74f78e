"""Choice of a catalogue's evaluation sets, and what their folders lack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emberge.contracts import DataRef, Preflight, Split
from emberge.data.catalogue import load_catalogue
from emberge.data.entry import EvalSet
from emberge.errors import DataError, suggest


def pick_eval_sets(path: Path, only: Sequence[str] = ()) -> list[EvalSet]:
    """Return the evaluation sets of a catalogue, or those in `only`.

    Raises:
        DataError: for a catalogue without evaluation sets, or a name it does not have.
    """
    catalogue = load_catalogue(path)
    if not catalogue.eval:
        raise DataError(f"{catalogue.path}: the catalogue has no evaluation sets (`eval`)")
    return _pick(catalogue.eval, only, str(catalogue.path))


def _pick(sets: Sequence[EvalSet], only: Sequence[str], place: str) -> list[EvalSet]:
    known = {one.name: one for one in sets}
    for name in only:
        if name not in known:
            hint = suggest(name, known) or f"; there are {', '.join(known)}"
            raise DataError(f"{place}: there is no evaluation set '{name}'{hint}")
    return [known[name] for name in (only or tuple(known))]


def check_eval_sets(
    context: Preflight, reference: DataRef, only: Sequence[str] = (), split: Split = "test"
) -> tuple[list[EvalSet], list[str]]:
    """Return the evaluation sets that a step will read, and what is wrong with them, before they are read.

    Sets that an earlier step is yet to make are those that it announces; none if it announces nothing.
    """
    try:
        path = context.data(reference)
        if path is not None:
            sets = pick_eval_sets(path, only)
            return sets, [fault for one in sets if (fault := lacking_half(one, split))]
        expected = context.expected(reference) if reference.step is not None else None
        if expected is None or not expected.sets:
            return [], []
        place = f"${reference.step}"
        to_come = [EvalSet(name=n, folder=Path(), task=t) for n, t in expected.sets.items()]
        sets = _pick(to_come, only, place)
    except DataError as error:
        return [], [str(error)]
    lacking = f"{place} makes no development halves; write split: test"
    return sets, [lacking] if split == "dev" else []


def lacking_half(one: EvalSet, split: Split) -> str | None:
    """Return the reason why a half of a set cannot be read, found without reading it; None without one."""
    if not one.folder.is_dir():
        return f"{one.where}: there is no folder {one.folder}"
    # Not all that is below the folder, which may be anything.
    there = [
        file.relative_to(one.folder).as_posix()
        for folder in (one.folder, one.folder / "qrels")
        for file in (folder.iterdir() if folder.is_dir() else ())
    ]
    judgements = ("qrels." if split == "test" else f"qrels_{split}.", f"qrels/{split}.")
    wanted: dict[str, tuple[str, ...]] = {f"{split} file": (f"{split}.",)}
    if one.task == "classification":
        wanted["train file"] = ("train.",)
    if one.task == "retrieval":
        wanted = {"corpus": ("corpus.",), "queries": ("queries.",), f"{split} qrels": judgements}
    for word, starts in wanted.items():
        if not any(name.startswith(starts) for name in there):
            return f"{one.where}: {one.folder} has no {word}"
    return None
