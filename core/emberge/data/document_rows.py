"""Rows of documents in the layout of BEIR: `text`, perhaps a `title`, and perhaps an id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.contracts import BadRow, Reader
from emberge.data.data_sources import find_reader
from emberge.data.rows.columns import small_headings
from emberge.errors import DataError

_IDS = ("_id", "id")


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """One document of a file: its number in the file, its id if it has one, its title or "", its text.

    `where` is `file:number`, for messages.
    """

    number: int
    where: str
    name: str | None
    title: str
    text: str


def read_document_rows(path: Path, readers: Sequence[Reader]) -> Iterator[DocumentRow]:
    """Yield the documents of a file of rows, also those whose text is empty.

    Raises:
        DataError: if a row cannot be read, has no text column, or has an id of another kind.
    """
    for number, row in find_reader(path, readers).rows(path):
        where = f"{path.name}:{number}"
        if isinstance(row, BadRow):
            raise DataError(f"{where}: {row.message}")
        yield _parse_row(small_headings(row), number, where)


def _parse_row(row: Mapping[str, Any], number: int, where: str) -> DocumentRow:
    text, title = row.get("text"), row.get("title")
    title = "" if title is None else title
    if not isinstance(text, str) or not isinstance(title, str):
        columns = ", ".join(map(str, row))
        raise DataError(
            f"{where}: a document needs text in the column `text`, and in `title` if it is there (columns: "
            f"{columns})"
        )
    name = next((row[key] for key in _IDS if row.get(key) is not None), None)
    if isinstance(name, bool) or not isinstance(name, str | int | None):
        raise DataError(f"{where}: the id is text or a whole number, not a {type(name).__name__}")
    return DocumentRow(number, where, None if name is None else str(name), title, text)
