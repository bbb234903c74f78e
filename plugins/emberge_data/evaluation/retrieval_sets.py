"""Retrieval sets in memory, from files in BEIR's layout or from rows in the format of training sets.

In rows, queries are the distinct anchors, the positives are relevant, and all texts are searched. Further
documents are rows with text, id and title, lines of a `.txt` file, or the texts of rows as steps write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from emberge import DataError, Example, Reader
from emberge.contracts import Split, strip_media_marks
from emberge.data import MediaValues
from emberge.wording import format_path

from emberge_data.document_rows import parse_document, read_rows_with_places
from emberge_data.evaluation.eval_set import EvalSet, RetrievalData
from emberge_data.json_lines import read_text_lines

_GRADE = re.compile(r"\s*(-?[0-9]{1,9})(?:\.0*)?\s*")
Judgement = tuple[str, tuple[str, str, int]]
PlacedRows = Iterable[tuple[str, Mapping[str, Any]]]


def read_beir(
    eval_set: EvalSet, *, corpus: PlacedRows, queries: PlacedRows, split: str, media: MediaValues
) -> RetrievalData:
    """Join documents, the queries with a judgement in this part, and the judgements.

    Raises:
        DataError: if a row has no id or text, an id occurs twice, a judgement names an unknown id, or a query
            has no relevant document.
    """
    judgements = _read_judgements(eval_set, split)
    texts = _read_texts(queries, media, titled=False)
    documents = _read_texts(corpus, media, titled=True)
    grades: dict[str, dict[str, int]] = {}
    for where, (query, document, grade) in judgements:
        if query not in texts:
            raise DataError(
                f"{where}: there is no query '{query}'; remove the judgement, or add the query"
            )
        if document not in documents:
            raise DataError(
                f"{where}: there is no document '{document}'; remove the judgement, or add the document"
            )
        if grades.setdefault(query, {}).setdefault(document, grade) != grade:
            raise DataError(
                f"{where}: '{document}' was given another grade for '{query}' before; keep one of "
                "the lines"
            )
    return RetrievalData(documents, {name: texts[name] for name in grades}, grades)


def find_judgement_file(eval_set: EvalSet, split: str) -> Path:
    """Return the file with the judgements of one part.

    Raises:
        DataError: if there is none.
    """
    file_name = "qrels.tsv" if split == "test" else f"qrels_{split}.tsv"
    for path in (eval_set.folder / file_name, eval_set.folder / "qrels" / f"{split}.tsv"):
        if path.is_file():
            return path
    where = f"{eval_set.where}: " if eval_set.where else ""
    raise DataError(
        f"{where}{format_path(eval_set.folder)} has no {file_name} with the judgements of its {split} part"
    )


def _read_judgements(eval_set: EvalSet, split: str) -> list[Judgement]:
    """Return the judgements of one part: `file:line`, (query, document, grade).

    Raises:
        DataError: if there is no file with them, no judgement in it, a line that cannot be read, or a query
            of the test or dev part without a grade above 0, for which each model's score would be 0.
    """
    path = find_judgement_file(eval_set, split)
    judgements = []
    for line, text in read_text_lines(path):
        cells = text.split("\t")
        grade = _GRADE.fullmatch(cells[-1])
        if not text.strip() or (line == 1 and not re.search(r"\d", cells[-1])):
            continue
        where = f"{format_path(path)}:{line}"
        if len(cells) != 3 or grade is None:
            raise DataError(f"{where}: expected query, document and a whole number between tabs")
        judgements.append((where, (cells[0], cells[1], int(grade[1]))))
    if not judgements:
        raise DataError(f"{format_path(path)}: there are no judgements")
    if split in get_args(Split):
        seen = {query for _, (query, _, grade) in judgements if grade > 0}
        for where, (query, _, _) in judgements:
            if query not in seen:
                raise DataError(
                    f"{where}: no document has a grade above 0 for the query '{query}', so that nothing "
                    "could be right; remove its lines, or correct them"
                )
    return judgements


def _read_texts(rows: PlacedRows, media: MediaValues, *, titled: bool) -> dict[str, str]:
    """Return texts by id."""
    texts: dict[str, str] = {}
    for where, row in rows:
        name = row.get("_id")
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise DataError(
                f"{where}: expected _id and text (columns: {', '.join(row)}); an _id is text or a "
                "whole number"
            )
        if str(name) in texts:
            raise DataError(f"{where}: the id '{name}' was given before; ids are unique")
        columns = row if titled else {key: row[key] for key in row if key != "title"}
        texts[str(name)] = parse_document(where, columns, media).join()
    return texts


@dataclass
class SearchedDocuments:
    """Distinct documents in order. `number_by_id` and `number_by_text` find the place of one in `texts`.

    A document is found by its text with its title in front, as it is searched, and also without the title.
    """

    file: str
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

    def find_or_add(self, text: str, by_id: bool, where: str) -> int:
        """Return the number of the document with this text or id; a new text is added.

        Raises:
            DataError: if there is no document with this id.
        """
        if not by_id:
            number = self.number_by_text.get(text.strip())
            return self.add(text) if number is None else number
        if text not in self.number_by_id:
            raise DataError(
                f"{where}: there is no document '{text}' in {self.file}, and the first row "
                "names its document by an id; correct the id, or add the document"
            )
        return self.number_by_id[text]


def read_searched_documents(
    path: Path, readers: Sequence[Reader], media: MediaValues
) -> SearchedDocuments:
    """Read the documents of a file.

    Raises:
        DataError: if there is no such file, no document in it, a document without a text, or an id twice.
    """
    documents = SearchedDocuments(format_path(path))
    if path.name.lower().endswith(".txt"):
        for _, line in read_text_lines(path):
            if line.strip():
                documents.add(strip_media_marks(line))
    else:
        for where, row in read_rows_with_places(path, readers):
            columns = [row]
            if isinstance(row.get("pos"), list):  # an example as steps write it
                columns = [{"text": text} for text in (*row["pos"], *row.get("neg", ()))]
            for document in columns:
                _add_row(documents, where, document, media)
    if not documents.texts:
        raise DataError(f"{documents.file}: there are no documents; give a file with texts")
    return documents


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


def join_rows(rows: Iterable[tuple[str, Example]], documents: SearchedDocuments) -> RetrievalData:
    """Return the retrieval set of rows, each after its `file:line`, and of further documents.

    If the first positive is the id of a document, positives and negatives are ids.

    Raises:
        DataError: if there is no document of an id.
    """
    queries: dict[str, dict[int, int]] = {}
    by_id: bool | None = None
    for where, row in rows:
        if by_id is None:
            by_id = row.positives[0] in documents.number_by_id
        judged = queries.setdefault(row.anchor, {})
        for text in row.positives:
            judged[documents.find_or_add(text, by_id, where)] = 1
        for text in row.negatives:
            documents.find_or_add(text, by_id, where)
    relevant = {
        f"q{number}": {f"d{document}": grade for document, grade in judged.items()}
        for number, judged in enumerate(queries.values())
    }
    return RetrievalData(
        {f"d{number}": text for number, text in enumerate(documents.texts)},
        {f"q{number}": anchor for number, anchor in enumerate(queries)},
        relevant,
    )
