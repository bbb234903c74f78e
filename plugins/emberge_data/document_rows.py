"""Rows of documents and queries: a text or media, perhaps a title, and perhaps an id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import BadRow, DataError, Reader
from emberge.contracts import MEDIA_KINDS, strip_media_marks
from emberge.data import MediaValues, find_reader, fold_headings
from emberge.wording import format_path

DOCUMENTS_FILE = "documents.jsonl"
"""Name of the file of all passages in the result of `generate_queries`."""
_ID_COLUMNS = ("_id", "id", "document_id", "doc_id")
_TEXT_COLUMNS = ("text", "document", "passage", "content", "contents", "body")


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """One document of a file: its place `file:number`, its id if it has one, its title or "", its text."""

    where: str
    name: str | None
    title: str
    text: str

    def join(self) -> str:
        """Return the title and the text as they are searched.

        Raises:
            DataError: if both are empty.
        """
        if joined_text := f"{self.title} {self.text}".strip():
            return joined_text
        raise DataError(f"{self.where}: the text is empty or only white space; fill or remove it")


def read_rows_with_places(
    path: Path, readers: Sequence[Reader]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield `file:line` and each row of a file.

    Raises:
        DataError: if a row cannot be read.
    """
    for number, row in find_reader(path, readers).rows(path):
        where = f"{format_path(path)}:{number}"
        if isinstance(row, BadRow):
            raise DataError(f"{where}: {row.message}")
        yield where, fold_headings(row)


def read_document_rows(path: Path, readers: Sequence[Reader]) -> Iterator[DocumentRow]:
    """Yield the documents of a file of rows, also those whose text is empty.

    Raises:
        DataError: if a row cannot be read, has no text column, or has an id of another kind.
    """
    for where, row in read_rows_with_places(path, readers):
        yield parse_document(where, row)


def parse_document(
    where: str, row: Mapping[str, Any], media: MediaValues | None = None
) -> DocumentRow:
    """Return a row as a document; without `media`, its text is no image and no clip.

    Raises:
        DataError: if the row has no text that can be read, or has an id of another kind.
    """
    column = next((name for name in _TEXT_COLUMNS if row.get(name) not in (None, "")), "text")
    text, title = row.get(column), row.get("title")
    title = "" if title is None else title
    try:
        text = _read_media(text, row, media) if media is not None else text
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    if not isinstance(text, str) or not isinstance(title, str):
        raise DataError(
            f"{where}: the row needs a text, and a title is text (columns: {', '.join(map(str, row))}); "
            "name the column text"
        )
    return DocumentRow(where, _read_id(where, row), strip_media_marks(title), text)


def _read_media(text: Any, row: Mapping[str, Any], media: MediaValues) -> Any:
    """Return a row's text with its media, from the text column or else from the media columns."""
    if isinstance(text, Mapping):
        return media.read_object(text, "text")
    values: dict[str, Any] = {
        kind: row[kind] for kind in MEDIA_KINDS if row.get(kind) not in (None, "")
    }
    if values:
        parts = values if text is None else {**values, "text": text}
        return media.read_object(parts, next(iter(values)))
    return strip_media_marks(text) if isinstance(text, str) else text


def _read_id(where: str, row: Mapping[str, Any]) -> str | None:
    column = next((name for name in _ID_COLUMNS if row.get(name) is not None), None)
    name = row[column] if column is not None else None
    if isinstance(name, bool) or not isinstance(name, str | int | None):
        raise DataError(f"{where}: '{column}' is text or a whole number, not {name}; correct it")
    return None if name is None else str(name)
