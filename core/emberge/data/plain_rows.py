"""Rows of a data entry with all their columns, for tasks whose rows are not examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from emberge.contracts import BadRow, DataRef, Reader
from emberge.data.data_sources import DataSource, expand
from emberge.data.entry import DataEntry
from emberge.data.sampling import sample_rows
from emberge.errors import DataError
from emberge.wording import printable

_SHOWN = 20  # largest number of bad rows that an error lists


@dataclass(frozen=True)
class PlainRows:
    """Rows of one file or hub dataset as mappings, each with its number; `key` hashes content and choice."""

    name: str
    place: str
    key: str
    rows: Sequence[tuple[int, Mapping[str, Any]]]

    def at(self, number: int) -> str:
        """Return the place of a row for messages: `file:line`."""
        return f"{self.place}:{number}"


def read_plain_rows(
    entry: DataEntry,
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path | None],
    limit: int | None = None,
    first: int | None = None,
) -> PlainRows | None:
    """Return an entry's rows, at most `limit` and the entry's limit; None before a step wrote the data.

    With `first`, only so many rows are read, and a hub dataset is not downloaded.

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
    rows = list(islice(source.rows(head=first is not None), first))
    _refuse_bad_rows(source, rows)
    limits = [n for n in (limit, entry.limit) if n is not None]
    numbers = sample_rows(len(rows), min(limits, default=None), source.name)
    key = "" if first is not None else source.key()
    return PlainRows(source.name, source.place, key, [rows[row] for row in numbers])  # type: ignore[misc]


def _refuse_bad_rows(
    source: DataSource, rows: Sequence[tuple[int, Mapping[str, Any] | BadRow]]
) -> None:
    bad = [(number, row.message) for number, row in rows if isinstance(row, BadRow)]
    if bad:
        lines = [
            f"{source.place}:{number}: {printable(message)}" for number, message in bad[:_SHOWN]
        ]
        more = [f"{source.place}: … and {len(bad) - _SHOWN} more"] if len(bad) > _SHOWN else []
        raise DataError("\n".join([*lines, *more]))
