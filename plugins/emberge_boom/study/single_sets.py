"""The datasets of data entries, one entry for each, before any row is read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from emberge import DataEntry, DataError
from emberge.data import load_catalogue


def one_by_one(entries: Sequence[DataEntry]) -> dict[str, DataEntry]:
    """Return the data entry of each dataset by a distinct label, in alphabetical order.

    The names of a catalogue's sets are read from it; if a step of the recipe writes the catalogue, `only`
    must name the sets.

    Raises:
        DataError: if the names of the datasets cannot be known.
    """
    labelled_entries = [labelled for entry in entries for labelled in _split_entry(entry)]
    labels = [re.sub(r"[^\w.-]+", "-", label) for label, _ in labelled_entries]
    repeated_labels = {label for label in labels if labels.count(label) > 1}
    named = {
        f"{label}-{number}" if label in repeated_labels else label: entry
        for number, (label, (_, entry)) in enumerate(zip(labels, labelled_entries, strict=True))
    }
    return dict(sorted(named.items()))


def _split_entry(entry: DataEntry) -> list[tuple[str, DataEntry]]:
    if entry.only:
        return [(name, dataclasses.replace(entry, only=(name,))) for name in entry.only]
    if entry.path is None:
        return [(entry.name or str(entry.hub).rpartition("/")[2], entry)]
    if entry.path.step is not None:
        raise DataError(
            f"the sets that {entry.path} will hold are not known yet; name them under `only`"
        )
    path = entry.path.folder / Path(entry.path.text).expanduser()
    if path.is_dir() or path.suffix in (".yaml", ".yml"):
        names = [str(listed.name) for listed in load_catalogue(path).train]
        return [(name, dataclasses.replace(entry, only=(name,))) for name in names]
    return [(entry.name or path.name.partition(".")[0], entry)]
