"""Which evaluation tasks are in domain for a model, by what its training data says of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from emberge.contracts.reference import DataRef
from emberge.data.catalogue import load_catalogue
from emberge.data.data_sources import pick
from emberge.data.entry import DataEntry
from emberge.data.file_summary import shown
from emberge.errors import DataError

__all__ = ["in_domain_tasks"]


def in_domain_tasks(
    entries: Sequence[DataEntry], resolve: Callable[[DataRef], Path | None]
) -> tuple[str, ...]:
    """The tasks that the entries' `ind_tasks` name, each once, in order; no row of data is read.

    An entry that is a catalogue stands for its training sets, or those in `only`. One that `resolve` gives
    None for is passed over.

    Raises:
        DataError: when a catalogue cannot be read, or no entry says what it makes in domain.
    """
    said: list[tuple[str, ...]] = []
    unseen = False
    for entry in entries:
        sets = [entry]
        path = resolve(entry.path) if entry.path is not None else None
        unseen |= entry.path is not None and path is None
        if path is not None and (path.is_dir() or path.suffix in (".yaml", ".yml")):
            sets += pick(load_catalogue(path), entry.only)
        said += [each.ind_tasks for each in sets if each.ind_tasks is not None]
    if entries and not said and not unseen:
        places = ", ".join(shown(Path(e.path.text)) if e.path else str(e.hub) for e in entries)
        raise DataError(
            f"{places}: no training set says which tasks it makes in domain; give them as ind_tasks"
        )
    return tuple(dict.fromkeys(task for tasks in said for task in tasks))
