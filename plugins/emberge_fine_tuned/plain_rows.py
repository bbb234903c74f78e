"""Rows of a data entry with all their columns, for tasks whose rows are not examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge import BadRow, DataEntry, DataError, DataRef, Reader
from emberge.data import (
    DataSource,
    MediaValues,
    RowProblems,
    fold_headings,
    list_sources,
    sample_rows,
)
from emberge.media import MediaFolder


@dataclass(frozen=True)
class PlainRows:
    """Rows of one file or hub dataset as mappings, each with its number; `key` hashes their content.

    `media` reads the images and clips of the rows; paths are relative to the rows' file.
    """

    name: str
    place: str
    key: str
    rows: Sequence[tuple[int, Mapping[str, Any]]]
    media: MediaValues = field(default_factory=MediaValues, compare=False, repr=False)

    def refuse(self, problems: Iterable[tuple[int, str]]) -> None:
        """Require that no row has a problem; each is (number of the row, message).

        Raises:
            DataError: if there is one; has a line for each, with its rows.
        """
        bad_rows = RowProblems()
        for number, message in problems:
            bad_rows.add(number, message)
        if bad_rows.count:
            raise DataError("\n".join(map(str, bad_rows.list_problems(self.place))))


def read_plain_rows(
    entry: DataEntry,
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    store: Path | None = None,
) -> PlainRows | None:
    """Return an entry's rows, at most its limit; None if a step has not written them yet.

    Media that rows have as bytes are written to the folder `store`, or to a temporary one.

    Raises:
        DataError: if the entry is not one file or hub dataset, or rows are bad; has a line for each problem.
        ConnectionError: if the hub cannot be reached.
    """
    sources = list_sources(entry, readers=readers, resolve=resolve)
    if not sources:
        return None
    if len(sources) > 1:
        raise DataError(f"{sources[0].place}: one file is wanted here, not a catalogue of several")
    source = sources[0]
    media = MediaValues(MediaFolder(store, read_from=source.path and source.path.parent))
    problems: list[tuple[int, str]] = []
    rows = list(_read_rows(source, media, problems))
    chosen_rows = [rows[row] for row in sample_rows(len(rows), entry.limit, source.name)]
    plain_rows = PlainRows(source.name, source.place, source.compute_key(), chosen_rows, media)
    plain_rows.refuse(problems)
    return plain_rows


def _read_rows(
    source: DataSource, media: MediaValues, problems: list[tuple[int, str]]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the rows with their numbers; media are files at once, as those of all rows may not fit memory."""
    for number, row in source.rows():
        if isinstance(row, BadRow):
            problems.append((number, row.message))
            continue
        try:
            yield number, media.save_bytes(fold_headings(row))
        except DataError as error:
            problems.append((number, str(error)))
