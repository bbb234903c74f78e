"""Retrieval sets that Python code gives as three dicts: checked, and written in BEIR's layout."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NoReturn

from emberge.data.catalogue_file import write_json_rows
from emberge.data.evaluation.beir_files import (
    Judgement,
    PlacedRows,
    find_unanswered,
    join_judgements,
)
from emberge.data.evaluation.set_faults import SetFaults
from emberge.data.rows.media_values import MediaValues
from emberge.errors import DataError
from emberge.files import fill_once, write_text
from emberge.hashes import stable_hash

_MOST_GRADE = 10**9 - 1  # largest that the reader of BEIR's layout takes


class _RaisedFaults(SetFaults):
    """Collector that raises the first fault of a set."""

    def add(self, message: str, *, hides: bool = False) -> NoReturn:
        raise DataError(message)


def write_python_set(
    queries: Mapping[Any, Any], corpus: Mapping[Any, Any], relevant: Mapping[Any, Any], folder: Path
) -> Path:
    """Write a retrieval set into a folder below `folder` that is named by the content; return its path.

    `queries` has texts by id, and so has `corpus`, or else a `title` and a `text` by id. `relevant` has the
    ids of each query's documents: a set or list, or a mapping from id to grade.

    Raises:
        DataError: if an id is unknown, given twice or unusable, a text is empty, or a query has no relevant
            document; names the dict and the id.
    """
    questions = list(_list_rows(queries, "queries"))
    documents = list(_list_rows(corpus, "corpus"))
    grades = {name: _read_grades(value, name) for name, value in _yield_named(relevant, "relevant")}
    _require_joined(questions, documents, grades)
    lines = [
        f"{name}\t{document}\t{grade}\n"
        for name in (row["_id"] for _, row in questions)
        for document, grade in grades[name].items()
    ]
    files = {
        "queries.jsonl": [row for _, row in questions],
        "corpus.jsonl": [row for _, row in documents],
    }

    def fill(side: Path) -> None:
        for name, rows in files.items():
            write_json_rows(side / name, rows)
        write_text(side / "qrels.tsv", "query-id\tcorpus-id\tscore\n" + "".join(lines))

    # Order counts, as it decides which of several equal scores comes first.
    key = stable_hash([*files.values(), lines])
    return fill_once(folder / f"data-{key[:16]}", fill)


def _list_rows(values: Mapping[Any, Any], label: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place of each text for messages, and its row."""
    for name, value in _yield_named(values, label):
        columns = value if isinstance(value, Mapping) else {"text": value}
        title = {"title": columns["title"]} if columns.get("title") else {}
        yield f"{label}: '{name}'", {"_id": name, **title, "text": columns.get("text")}


def _require_joined(
    questions: PlacedRows, documents: PlacedRows, grades: Mapping[str, Mapping[str, int]]
) -> None:
    """Require that the set can be read, and that each query has a relevant document."""
    faults = _RaisedFaults()
    judgements: list[Judgement] = [
        (f"relevant: '{query}'", (query, document, grade))
        for query, judged in grades.items()
        for document, grade in judged.items()
    ]
    data = join_judgements(questions, documents, judgements, MediaValues(), faults)
    find_unanswered(judgements, faults)
    if not data.queries:
        raise DataError("queries: there is no query")
    for name in data.queries:
        if name not in data.relevant:
            raise DataError(f"queries: '{name}' has no relevant document; remove it, or add one")


def _yield_named(values: Mapping[Any, Any], label: str) -> Iterator[tuple[str, Any]]:
    """Yield each id as text with its value."""
    seen: set[str] = set()
    for key, value in values.items():
        if isinstance(key, bool) or not isinstance(key, str | numbers.Integral):
            raise DataError(f"{label}: an id is text or a whole number, not {key!r}")
        name = str(key)
        if name in seen:
            raise DataError(f"{label}: the id '{name}' is given as text and as a number")
        if not name.strip() or any(mark in name for mark in "\t\r\n"):
            raise DataError(f"{label}: the id {name!r} is empty or has a tab or a line end")
        seen.add(name)
        yield name, value


def _read_grades(value: Any, name: str) -> dict[str, int]:
    """Return the grade of each relevant document of a query; those of a set are sorted by their ids."""
    place = f"relevant: '{name}'"
    if isinstance(value, Mapping):
        pairs = list(_yield_named(value, place))
    elif isinstance(value, AbstractSet | Sequence) and not isinstance(value, str | bytes):
        pairs = [(document, 1) for document in map(str, value)]
        pairs = sorted(pairs) if isinstance(value, AbstractSet) else pairs
    else:
        raise DataError(
            f"{place} needs a set or list of ids, or ids with grades, not {type(value).__name__}"
        )
    for document, grade in pairs:
        is_number = isinstance(grade, numbers.Integral) and not isinstance(grade, bool)
        if not is_number or abs(int(grade)) > _MOST_GRADE:
            raise DataError(
                f"{place}: the grade of '{document}' is a whole number of up to nine digits, "
                f"not {grade!r}"
            )
    return {document: int(grade) for document, grade in pairs}
