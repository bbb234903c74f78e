"""Retrieval sets that Python code gives as three dicts: checked, and written in BEIR's layout."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from emberge.contracts import plain_text
from emberge.data.catalogue_file import write_json_rows
from emberge.errors import DataError
from emberge.files import fill_once, write_text
from emberge.hashes import stable_hash

_REMEDY = "remove it, or add one"
_MOST_GRADE = 10**9 - 1  # largest that the reader of BEIR's layout takes


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
    questions = {
        name: _read_text(value, f"queries: '{name}'")
        for name, value in _yield_named(queries, "queries")
    }
    documents = {
        name: _read_document(value, name) for name, value in _yield_named(corpus, "corpus")
    }
    grades = {name: _read_grades(value, name) for name, value in _yield_named(relevant, "relevant")}
    if not questions:
        raise DataError("queries: there is no query")
    _require_known(questions, documents, grades)
    content: list[Mapping[str, Any]] = [
        *(questions, documents, {name: grades[name] for name in questions})
    ]

    def fill(side: Path) -> None:
        write_json_rows(
            side / "queries.jsonl", ({"_id": n, "text": t} for n, t in questions.items())
        )
        write_json_rows(side / "corpus.jsonl", ({"_id": n, **d} for n, d in documents.items()))
        lines = [
            f"{name}\t{document}\t{grade}\n"
            for name in questions
            for document, grade in grades[name].items()
        ]
        write_text(side / "qrels.tsv", "query-id\tcorpus-id\tscore\n" + "".join(lines))

    # Order counts, as it decides which of several equal scores comes first.
    key = stable_hash([list(part.items()) for part in content])
    return fill_once(folder / f"data-{key[:16]}", fill)


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


def _read_text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{place} needs a text, not {type(value).__name__}")
    if not value.strip():
        raise DataError(f"{place}: the text is empty or only white space; fill or remove it")
    return plain_text(value)


def _read_document(value: Any, name: str) -> dict[str, str]:
    """Return the columns of a document: its text, and its title if it has one."""
    place = f"corpus: '{name}'"
    if not isinstance(value, Mapping):
        return {"text": _read_text(value, place)}
    title, text = value.get("title") or "", value.get("text")
    if not title:
        return {"text": _read_text(text, place)}
    return {"title": _read_text(title, place), "text": _read_text(text, place)}


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


def _require_known(
    queries: Mapping[str, str],
    documents: Mapping[str, Any],
    grades: Mapping[str, Mapping[str, int]],
) -> None:
    for name, judged in grades.items():
        if name not in queries:
            raise DataError(f"relevant: there is no query '{name}'; {_REMEDY} to queries")
        for document in judged:
            if document not in documents:
                raise DataError(
                    f"relevant: '{name}' names the document '{document}', and "
                    f"corpus has none; {_REMEDY}"
                )
    for name in queries:
        if not any(grade > 0 for grade in grades.get(name, {}).values()):
            raise DataError(f"queries: '{name}' has no relevant document; {_REMEDY}")
