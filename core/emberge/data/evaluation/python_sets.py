"""Retrieval sets that Python code gives as three dicts, written in BEIR's layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from emberge.data.catalogue_file import write_json_rows
from emberge.errors import DataError
from emberge.files import fill_once, write_text
from emberge.hashes import stable_hash


def write_python_set(
    queries: Mapping[Any, Any], corpus: Mapping[Any, Any], relevant: Mapping[Any, Any], folder: Path
) -> Path:
    """Write a retrieval set into a folder below `folder` that is named by the content; return its path.

    `queries` has texts by id, and so has `corpus`, or else a `title` and a `text` by id. `relevant` has the
    ids of each query's documents: a set or list, or a mapping from id to grade. What cannot be scored is told
    by the reader of the folder.

    Raises:
        DataError: if the documents of a query are no set, list or mapping.
    """
    files = {"queries.jsonl": _list_rows(queries), "corpus.jsonl": _list_rows(corpus)}
    lines = [
        f"{query}\t{document}\t{grade}\n"
        for query, judged in relevant.items()
        for document, grade in _list_grades(judged, query)
    ]

    def fill(side: Path) -> None:
        for name, rows in files.items():
            write_json_rows(side / name, rows)
        write_text(side / "qrels.tsv", "query-id\tcorpus-id\tscore\n" + "".join(lines))

    # Order counts, as it decides which of several equal scores comes first.
    key = stable_hash([*files.values(), lines])
    return fill_once(folder / f"data-{key[:16]}", fill)


def _list_rows(values: Mapping[Any, Any]) -> list[dict[str, Any]]:
    return [
        {"_id": str(name), **(value if isinstance(value, Mapping) else {"text": value})}
        for name, value in values.items()
    ]


def _list_grades(value: Any, query: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (document, grade) of a query's documents; those of a set are sorted by their ids."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, AbstractSet | Sequence) and not isinstance(value, str | bytes):
        names = sorted(value, key=str) if isinstance(value, AbstractSet) else value
        yield from ((name, 1) for name in names)
    else:
        raise DataError(
            f"relevant: '{query}' needs a set or list of ids, or ids with grades, not "
            f"{type(value).__name__}"
        )
