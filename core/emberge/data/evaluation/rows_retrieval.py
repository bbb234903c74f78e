"""Retrieval sets from rows: queries are the distinct anchors, positives are relevant, all is searched.

Further documents are rows with text, id and title, or lines of a `.txt` file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.contracts import BadRow, Reader, plain_text
from emberge.data.data_sources import find_reader
from emberge.data.document_rows import parse_document
from emberge.data.evaluation.beir_files import reduce_corpus
from emberge.data.evaluation.eval_data import RetrievalData
from emberge.data.file_summary import format_path
from emberge.data.rows.columns import small_headings
from emberge.data.rows.line_files import read_text_lines
from emberge.data.rows.media_values import MediaValues
from emberge.data.rows.row_faults import SetFaults
from emberge.data.rows.row_parser import Row
from emberge.data.sampling import sample_rows
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
    path: Path, readers: Sequence[Reader], media: MediaValues, faults: SetFaults
) -> SearchedDocuments:
    """Read the documents of a file.

    Faults are documents without a text, and ids that occur twice.

    Raises:
        DataError: if there is no such file, or no document in it.
    """
    documents = SearchedDocuments(format_path(path))
    if path.name.lower().endswith(_LINES):
        for _, line in read_text_lines(path):
            if line.strip():
                documents.add(plain_text(line))
    else:
        for where, row in read_placed_rows(path, readers, faults):
            with faults.collect():
                _add_row(documents, where, row, media)
    if not documents.texts:
        faults.require_none()
        raise DataError(f"{documents.place}: there are no documents; give a file with texts")
    return documents


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


def join_rows(
    rows: Iterable[tuple[str, Row]],
    documents: SearchedDocuments,
    faults: SetFaults,
    *,
    name: str,
    limit: int | None,
) -> RetrievalData:
    """Return the retrieval set of rows, each after its `file:line`, and of further documents.

    If the first positive is the id of a document, positives and negatives are ids. `limit` keeps a sample of
    the queries, which depends on the set's `name`, the documents that belong to them, and as many others.

    Raises:
        DataError: if there is no document of an id; has a line for each fault.
    """
    queries: dict[str, dict[int, int]] = {}
    by_id: bool | None = None
    for where, row in rows:
        if by_id is None:
            by_id = row.positives[0] in documents.number_by_id
        judged = queries.setdefault(row.anchor, {})
        for text in row.positives:
            with faults.collect():
                judged[_find_document(documents, text, by_id, where)] = 1
        for text in row.negatives:
            with faults.collect():
                _find_document(documents, text, by_id, where)
    faults.require_none()
    corpus = {f"d{number}": text for number, text in enumerate(documents.texts)}
    anchors = list(queries)
    kept_numbers = sample_rows(len(anchors), limit, name)
    relevant: Mapping[str, Mapping[str, int]] = {
        f"q{number}": {
            f"d{document}": grade for document, grade in queries[anchors[number]].items()
        }
        for number in kept_numbers
    }
    if limit is not None:
        corpus = reduce_corpus(corpus, relevant, limit, name)
    return RetrievalData(corpus, {f"q{n}": anchors[n] for n in kept_numbers}, relevant)


def _find_document(documents: SearchedDocuments, text: str, by_id: bool, where: str) -> int:
    """Return the number of the document with this text or id; a new text is added to the documents."""
    if not by_id:
        number = documents.number_by_text.get(text.strip())
        return documents.add(text) if number is None else number
    if text not in documents.number_by_id:
        raise DataError(
            f"{where}: there is no document '{text}' in {documents.place}, and the first row "
            "names its document by an id; correct the id, or add the document"
        )
    return documents.number_by_id[text]
