"""Data entries, one dataset each."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from emberge import DataEntry, DataError

__all__ = ["one_by_one"]


def one_by_one(entries: Sequence[DataEntry]) -> dict[str, DataEntry]:
    """Return an entry for each dataset by a distinct label, in alphabetical order.

    A catalogue is read for the names of its sets; of one that a step writes, `only` must name them.

    Raises:
        DataError: where it is not known which datasets there are.
    """
    found = [one for entry in entries for one in _split(entry)]
    labels = [re.sub(r"[^\w.-]+", "-", label) for label, _ in found]
    twice = {label for label in labels if labels.count(label) > 1}
    named = {
        f"{label}-{number}" if label in twice else label: entry
        for number, (label, (_, entry)) in enumerate(zip(labels, found, strict=True))
    }
    return dict(sorted(named.items()))


def _split(entry: DataEntry) -> list[tuple[str, DataEntry]]:
    if entry.only:
        return [(name, dataclasses.replace(entry, only=(name,))) for name in entry.only]
    if entry.path is None:
        return [(entry.name or str(entry.hub).rpartition("/")[2], entry)]
    if entry.path.step is not None:
        raise DataError(
            f"the sets that {entry.path} will hold are not known yet; name them under `only`"
        )
    place = entry.path.folder / Path(entry.path.text).expanduser()
    if place.is_dir() or place.suffix in (".yaml", ".yml"):
        from emberge.data import load_catalogue

        names = [str(one.name) for one in load_catalogue(place).train]
        return [(name, dataclasses.replace(entry, only=(name,))) for name in names]
    return [(entry.name or place.name.partition(".")[0], entry)]
