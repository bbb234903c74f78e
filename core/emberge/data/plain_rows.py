"""Rows of a data entry with all their columns, for tasks whose rows are not examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.contracts import BadRow, DataRef, Reader
from emberge.data.data_sources import DataSource, expand
from emberge.data.entry import DataEntry
from emberge.data.rows.media_values import MediaValues
from emberge.data.sampling import sample_rows
from emberge.errors import DataError
from emberge.media import MediaFolder

_MOST_SHOWN_ROWS = 20  # largest number of bad rows that an error lists


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

    def at(self, number: int) -> str:
        """Return the place of a row for messages: `file:line`."""
        return f"{self.place}:{number}"


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
        DataError: if the entry is not one file or hub dataset, or rows are bad; has a line for each bad row.
        ConnectionError: if the hub cannot be reached.
    """
    sources = expand(entry, readers=readers, resolve=resolve)
    if not sources:
        return None
    if len(sources) > 1:
        raise DataError(f"{sources[0].place}: one file is wanted here, not a catalogue of several")
    source = sources[0]
    folder = MediaFolder(store, beside=source.path and source.path.parent)
    media = MediaValues(folder)
    rows = list(_read_rows(source, media))
    _refuse_bad_rows(source, rows)
    row_numbers = sample_rows(len(rows), entry.limit, source.name)
    chosen_rows = [rows[row] for row in row_numbers]
    return PlainRows(source.name, source.place, source.key(), chosen_rows, media)  # type: ignore[arg-type]


def _read_rows(
    source: DataSource, media: MediaValues
) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
    """Yield the rows with their numbers; media are files at once, as those of all rows may not fit memory."""
    for number, row in source.rows():
        if isinstance(row, BadRow):
            yield number, row
            continue
        try:
            yield number, media.without_bytes(row)
        except DataError as error:
            yield number, BadRow(str(error))


def _refuse_bad_rows(
    source: DataSource, rows: Sequence[tuple[int, Mapping[str, Any] | BadRow]]
) -> None:
    bad_rows = [(number, row.message) for number, row in rows if isinstance(row, BadRow)]
    if bad_rows:
        lines = [
            f"{source.place}:{number}: {message}" for number, message in bad_rows[:_MOST_SHOWN_ROWS]
        ]
        count_line = (
            [f"{source.place}: … and {len(bad_rows) - _MOST_SHOWN_ROWS} more"]
            if len(bad_rows) > _MOST_SHOWN_ROWS
            else []
        )
        raise DataError("\n".join([*lines, *count_line]))
