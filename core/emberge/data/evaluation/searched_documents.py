"""Documents to search in addition to the texts of rows: with text, id and title, or one per line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from emberge.contracts import BadRow, Reader, plain_text
from emberge.data.data_sources import find_reader
from emberge.data.document_rows import parse_document
from emberge.data.evaluation.set_faults import SetFaults
from emberge.data.file_summary import format_path
from emberge.data.rows.columns import small_headings
from emberge.data.rows.line_files import read_text_lines
from emberge.data.rows.media_values import MediaValues
from emberge.errors import DataError

_LINES = ".txt"


@dataclass
class SearchedDocuments:
    """Distinct documents in order. `number_by_id` and `number_by_text` find the place of one in `texts`.

    A document is found by its text with its title in front, as it is searched, and also without the title.
    """

    place: str
    texts: list[str] = field(default_factory=list)
    number_by_id: dict[str, int] = field(default_factory=dict)
    number_by_text: dict[str, int] = field(default_factory=dict)

    def add(self, text: str, title: str = "", name: str | None = None) -> int:
        """Add a document, unless there is one with this text, and return its number."""
        whole_text = f"{title} {text}".strip()
        number = self.number_by_text.get(whole_text)
        if number is None:
            number = len(self.texts)
            self.texts.append(whole_text)
            self.number_by_text[whole_text] = number
        self.number_by_text.setdefault(text.strip(), number)
        if name is not None:
            self.number_by_id[name] = number
        return number


def read_searched_documents(
    path: Path,
    readers: Sequence[Reader],
    media: MediaValues,
    faults: SetFaults,
    limit: int | None = None,
) -> SearchedDocuments:
    """Read the documents of a file, or of each file of a folder; at most the first `limit` of each file.

    Faults are documents without a text, and ids that occur twice.

    Raises:
        DataError: if there is no file, or no document in it.
    """
    documents = SearchedDocuments(format_path(path))
    for file in _list_document_files(path, readers):
        if file.name.lower().endswith(_LINES):
            for _, line in islice(read_text_lines(file), limit):
                if line.strip():
                    documents.add(plain_text(line))
            continue
        for where, row in islice(read_placed_rows(file, readers, faults), limit):
            with faults.collect():
                _add_row(documents, where, row, media)
    if not documents.texts:
        faults.require_none()
        raise DataError(f"{documents.place}: there are no documents; give a file with texts")
    return documents


def _list_document_files(path: Path, readers: Sequence[Reader]) -> list[Path]:
    """Return the file itself, or a folder's `corpus` or `documents` file, or else all of a known format."""
    suffixes = (*(suffix for reader in readers for suffix in reader.suffixes), _LINES)
    if not path.is_dir():
        if not path.is_file():
            raise DataError(f"{format_path(path)}: there is no such file of documents")
        if not path.name.lower().endswith(suffixes):
            raise DataError(
                f"{format_path(path)}: documents are in a file of rows ({', '.join(sorted(suffixes))})"
            )
        return [path]
    files = [file for file in sorted(path.iterdir()) if file.name.lower().endswith(suffixes)]
    corpora = [file for file in files if file.name.startswith(("corpus.", "documents."))]
    if not files:
        raise DataError(
            f"{format_path(path)}: the folder has no file of documents ({', '.join(sorted(suffixes))})"
        )
    return corpora[:1] or files


def read_placed_rows(
    file: Path, readers: Sequence[Reader], faults: SetFaults
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield `file:line` and each row of a file; rows that cannot be read are faults."""
    for line, row in find_reader(file, readers).rows(file):
        where = f"{format_path(file)}:{line}"
        if isinstance(row, BadRow):
            faults.add(f"{where}: {row.message}", hides=True)
            continue
        yield where, small_headings(row)


def _add_row(
    documents: SearchedDocuments, where: str, row: Mapping[str, Any], media: MediaValues
) -> None:
    document = parse_document(where, row, media)
    document.join()  # which refuses an empty one
    if document.name in documents.number_by_id:
        raise DataError(
            f"{where}: the id '{document.name}' was given before; ids are unique, so rename or remove "
            "one document"
        )
    documents.add(document.text, document.title, document.name)
