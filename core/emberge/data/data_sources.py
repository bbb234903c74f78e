"""Sources of rows: catalogues are expanded into their sets, and each file is assigned a reader."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from emberge.contracts import BadRow, DataRef, Reader
from emberge.data.catalogue import (
    HELD_OUT_PARTS,
    build_instruction_prompt,
    list_held_out_sets,
    load_catalogue,
    pick_training_sets,
)
from emberge.data.dataset_store import STORE_FORMAT
from emberge.data.entry import DataEntry
from emberge.data.hub_datasets import describe_hub_entry, hash_hub_rows, read_hub_rows
from emberge.errors import DataError, suggest
from emberge.hashes import hash_sha256
from emberge.wording import format_path

Resolve = Callable[[DataRef], Path | None]


@dataclass(frozen=True)
class DataSource:
    """A dataset before it is read: its name, its options merged with the catalogue's, and its file."""

    name: str
    entry: DataEntry
    path: Path | None = None
    reader: Reader | None = None

    @property
    def place(self) -> str:
        """The file's or hub dataset's name for messages."""
        return format_path(self.path) if self.path is not None else describe_hub_entry(self.entry)

    def rows(self, *, head: bool = False) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
        """Yield each row with its number; `head` promises that the caller takes only the first rows."""
        if self.path is not None and self.reader is not None:
            return islice(self.reader.rows(self.path), self.entry.first)
        return islice(read_hub_rows(self.entry, head=head), self.entry.first)

    def compute_key(self) -> str:
        """Return 32 hex digits that hash the content and the options by which rows are understood."""
        parts = [
            STORE_FORMAT,
            self.place if self.path is None else hash_sha256(self.path),
            "" if self.path is not None else hash_hub_rows(self.entry),
            [type(self.reader).__name__, getattr(self.reader, "revision", 1)],
            dataclasses.asdict(self.entry.columns),
            self.entry.score_range,
            self.entry.task == "text",
            self.entry.first,
        ]
        return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def list_sources(
    entry: DataEntry, *, readers: Sequence[Reader], resolve: Resolve
) -> list[DataSource]:
    """Return the sources of one entry; an empty list if it names the output of a step that has not run.

    Raises:
        DataError: if the entry contradicts itself, or a file is missing or has no reader.
    """
    if (entry.path is None) == (entry.hub is None):
        label = entry.name or entry.hub or ""
        raise DataError(f"data entry '{label}' needs either path or hub")
    if entry.path is None:
        entry = _fill_prompt(entry)
        return [DataSource(entry.name or str(entry.hub).rpartition("/")[2], entry)]
    path = resolve(entry.path)
    if path is None:
        return []
    if path.is_dir() or path.suffix in (".yaml", ".yml"):
        return _list_catalogue_sources(entry, path, readers)
    if entry.only:
        raise DataError(
            f"{format_path(path)}: `only` picks sets of a catalogue, and this is a file"
        )
    return [_build_file_source(_fill_prompt(entry), path, readers)]


def _fill_prompt(entry: DataEntry, set_prompt: str | None = None) -> DataEntry:
    """Return the entry with the placeholders of its prompt filled in; `set_prompt` replaces `{prompt}`."""
    if entry.prompt is None:
        return entry
    if set_prompt is None:
        set_prompt = build_instruction_prompt(entry.instruction)
    prompt = entry.prompt.replace("{instruction}", entry.instruction)
    return dataclasses.replace(entry, prompt=prompt.replace("{prompt}", set_prompt))


def _list_catalogue_sources(
    entry: DataEntry, path: Path, readers: Sequence[Reader]
) -> list[DataSource]:
    """Return the sources of a catalogue's sets, those of the part that the entry's `split` names."""
    if path.is_dir() and not (path / "datasets.yaml").is_file():
        raise DataError(
            f"{format_path(path)}: the folder has no datasets.yaml; name a file in it, or write a catalogue"
        )
    catalogue = load_catalogue(path)
    has_only_hub_sets = all(set_entry.hub for set_entry in catalogue.train)
    has_part = bool({"dev": catalogue.dev, "test": catalogue.test}.get(entry.split))
    if entry.split in HELD_OUT_PARTS and (has_part or not has_only_hub_sets):
        part = tuple(list_held_out_sets(catalogue, entry.split))
        catalogue = dataclasses.replace(catalogue, train=part)
        entry = dataclasses.replace(entry, split="train")
    sets = pick_training_sets(catalogue, entry.only)
    if not sets:
        raise DataError(f"{format_path(catalogue.path)}: the catalogue has no training sets")
    if entry.name is not None and len(sets) > 1:
        raise DataError(
            f"{format_path(catalogue.path)}: the name '{entry.name}' cannot stand for {len(sets)} sets; "
            "leave it out, or pick one with `only`"
        )
    return [_build_set_source(entry, set_entry, readers) for set_entry in sets]


def _build_set_source(
    entry: DataEntry, set_entry: DataEntry, readers: Sequence[Reader]
) -> DataSource:
    """Return the source of a catalogue's set; options of the recipe's `entry` replace those of the set."""
    defaults = vars(DataEntry())
    recipe_options = {
        name: value
        for name, value in vars(entry).items()
        if name not in ("path", "only") and value != defaults[name]
    }
    if "source" in recipe_options:
        recipe_options["source"] = set_entry.source.updated(entry.source)
    if set_entry.path is not None:  # only evaluations search a file of documents
        set_entry = dataclasses.replace(set_entry, documents=None)
    entry = _fill_prompt(dataclasses.replace(set_entry, **recipe_options), set_entry.prompt)
    if entry.path is None:
        return DataSource(str(entry.name), entry)
    return _build_file_source(entry, Path(entry.path.text), readers)


def _build_file_source(entry: DataEntry, path: Path, readers: Sequence[Reader]) -> DataSource:
    for option in ("split", "subset", "folder", "documents", "revision"):
        if getattr(entry, option) != getattr(DataEntry, option):
            raise DataError(
                f"{format_path(path)}: `{option}` chooses a part of a hub dataset, and this is a file; "
                "leave it out"
            )
    if path.exists() and not path.is_file():
        raise DataError(f"{format_path(path)}: not a regular file; give a file of rows")
    if not path.exists():
        files = path.parent.iterdir() if path.parent.is_dir() else ()
        hint = suggest(path.name, [file.name for file in files])
        raise DataError(f"{format_path(path)}: there is no such file{hint}")
    reader = find_reader(path, readers)
    suffix = max((s for s in reader.suffixes if path.name.lower().endswith(s)), key=len)
    return DataSource(entry.name or path.name[: -len(suffix)], entry, path, reader)


def find_reader(path: Path, readers: Sequence[Reader]) -> Reader:
    """Return the reader with the longest suffix that the file's name ends with.

    Raises:
        DataError: if no reader fits; lists the formats that can be read.
    """
    matching_suffixes = [
        (len(suffix), i)
        for i, reader in enumerate(readers)
        for suffix in reader.suffixes
        if path.name.lower().endswith(suffix)
    ]
    if not matching_suffixes:
        suffixes = ", ".join(sorted(suffix for reader in readers for suffix in reader.suffixes))
        raise DataError(
            f"{format_path(path)}: no reader for this kind of file; known: {suffixes or 'none'}"
        )
    return readers[max(matching_suffixes)[1]]


def refuse_clashes(sources: Iterable[DataSource]) -> None:
    """Refuse two datasets with the same name, because samplers and options refer to names.

    Raises:
        DataError: if two datasets have the same name; names both places.
    """
    places: dict[str, str] = {}
    for source in sources:
        if source.name in places:
            raise DataError(
                f"two datasets are named '{source.name}' ({places[source.name]} and {source.place}); "
                "give one another name"
            )
        places[source.name] = source.place
