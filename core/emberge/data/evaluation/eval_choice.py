"""Choice of a catalogue's evaluation sets, and what their folders lack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emberge.contracts.evaluator import Split
from emberge.data.catalogue import load_catalogue
from emberge.data.entry import EvalSet
from emberge.errors import DataError, suggest

__all__ = ["lacking_half", "pick_eval_sets"]


def pick_eval_sets(path: Path, only: Sequence[str] = ()) -> list[EvalSet]:
    """Return the evaluation sets of a catalogue, or those in `only`.

    Raises:
        DataError: for a catalogue without evaluation sets, or a name it does not have.
    """
    catalogue = load_catalogue(path)
    known = {one.name: one for one in catalogue.eval}
    if not known:
        raise DataError(f"{catalogue.path}: the catalogue has no evaluation sets (`eval`)")
    for name in only:
        if name not in known:
            raise DataError(
                f"{catalogue.path}: there is no evaluation set '{name}'{suggest(name, known)}"
            )
    return [known[name] for name in (only or tuple(known))]


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
