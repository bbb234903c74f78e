"""The evaluation tasks that are in domain for a model, as its training data declare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from emberge.contracts import DataRef
from emberge.data.catalogue import load_catalogue
from emberge.data.data_sources import pick
from emberge.data.entry import DataEntry
from emberge.data.file_summary import shown
from emberge.errors import DataError


def in_domain_tasks(
    entries: Sequence[DataEntry], resolve: Callable[[DataRef], Path | None]
) -> tuple[str, ...]:
    """Return the tasks that the entries' `ind_tasks` name, each once, in order; no row of data is read.

    An entry that is a catalogue means its training sets, or those in `only`. One that `resolve` gives
    None for is passed over.

    Raises:
        DataError: when a catalogue cannot be read, or no entry declares its tasks.
    """
    declared: list[tuple[str, ...]] = []
    unseen = False
    for entry in entries:
        sets = [entry]
        path = resolve(entry.path) if entry.path is not None else None
        unseen |= entry.path is not None and path is None
        if path is not None and (path.is_dir() or path.suffix in (".yaml", ".yml")):
            sets += pick(load_catalogue(path), entry.only)
        declared += [each.ind_tasks for each in sets if each.ind_tasks is not None]
    if entries and not declared and not unseen:
        places = ", ".join(shown(Path(e.path.text)) if e.path else str(e.hub) for e in entries)
        raise DataError(
            f"{places}: no training set says which tasks it makes in domain; give them as ind_tasks"
        )
    return tuple(dict.fromkeys(task for tasks in declared for task in tasks))
