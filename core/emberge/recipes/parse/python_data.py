"""Recipes as Python data: mappings, lists, numbers, texts, paths, plain dataclasses, evaluation data."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import json
import numbers
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from emberge.errors import DataError, Problem, RecipeError
from emberge.files import fill_once, write_text
from emberge.hashes import stable_hash

# The dicts of a retrieval set.
_SET_KEYS = ("queries", "corpus", "relevant")
_SET_NAME = "test"  # of a set that is given no name


def to_yaml_data(value: Any, place: str, folder: Path | None = None) -> Any:
    """Return a value as data that YAML has: a path or result becomes text, a dataclass its fields.

    Evaluation data, a mapping or dataclass with queries, corpus and relevant, are written to files
    below `folder` and become the path of these; without a folder, they are kept until the process ends.

    Raises:
        RecipeError: if YAML has no such value; names the value's place in the data, `recipe.steps.a.merge`.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, os.PathLike):
        return path_text(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        value = _write_eval_data(value, place, folder)
        return {str(k): to_yaml_data(inner, f"{place}.{k}", folder) for k, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [to_yaml_data(inner, f"{place}.{i}", folder) for i, inner in enumerate(value)]
    raise RecipeError(
        Problem(
            f"a recipe has mappings, lists, texts, numbers and paths, no {type(value).__name__}",
            place,
        )
    )


def _write_eval_data(
    value: Mapping[Any, Any], place: str, folder: Path | None
) -> Mapping[Any, Any]:
    """Return the mapping with a path in place of queries, corpus and relevant, if it has these.

    Raises:
        RecipeError: if one of the three is missing, or they cannot be used.
    """
    given_keys = [key for key in _SET_KEYS if isinstance(value.get(key), Mapping)]
    if len(given_keys) < 2:
        return value
    try:
        if len(given_keys) < len(_SET_KEYS):
            (missing,) = (key for key in _SET_KEYS if key not in given_keys)
            raise DataError(
                f"evaluation data are queries, corpus and relevant; add {missing}, a dict"
            )
        queries, corpus, relevant = (value[key] for key in _SET_KEYS)
        folder = _make_temporary_folder() if folder is None else folder
        path = _write_retrieval_set(queries, corpus, relevant, folder)
    except DataError as error:
        raise RecipeError(Problem(str(error), place)) from None
    options = {key: inner for key, inner in value.items() if key not in _SET_KEYS}
    return {"path": path.absolute(), "name": _SET_NAME, **options}


def _write_retrieval_set(
    queries: Mapping[Any, Any], corpus: Mapping[Any, Any], relevant: Mapping[Any, Any], folder: Path
) -> Path:
    """Write a set in BEIR's layout into a folder below `folder`, named by the content; return its path.

    `queries` has texts by id, and so has `corpus`, or else a `title` and a `text` by id. `relevant` has the
    ids of each query's documents: a set or list, or a mapping from id to grade.

    Raises:
        DataError: if the documents of a query are no set, list or mapping.
    """
    # Order counts, as it decides which of several equal scores comes first.
    grades = [
        f"{query}\t{document}\t{grade}\n"
        for query, judged in relevant.items()
        for document, grade in _list_grades(judged, query)
    ]
    files = {
        "queries.jsonl": _format_rows(queries),
        "corpus.jsonl": _format_rows(corpus),
        "qrels.tsv": "query-id\tcorpus-id\tscore\n" + "".join(grades),
    }

    def fill(side: Path) -> None:
        for name, text in files.items():
            write_text(side / name, text)

    return fill_once(folder / f"data-{stable_hash(files)[:16]}", fill)


def _format_rows(values: Mapping[Any, Any]) -> str:
    rows = (
        {"_id": str(name), **(value if isinstance(value, Mapping) else {"text": value})}
        for name, value in values.items()
    )
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _list_grades(value: Any, query: Any) -> Iterable[tuple[Any, Any]]:
    """Return (document, grade) of a query's documents; those of a set are sorted by their ids."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, AbstractSet):
        value = sorted(value, key=str)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [(name, 1) for name in value]
    raise DataError(
        f"relevant: '{query}' needs a set or list of ids, or ids with grades, not {type(value).__name__}"
    )


@functools.cache
def _make_temporary_folder() -> Path:
    """Create the process's temporary folder, which is removed when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="emberge-data-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def path_text(path: os.PathLike[str]) -> str:
    """Return a path as a recipe names it: `./models/one`, as `models/one` would be an id of the hub."""
    text = os.fspath(path)
    is_clear = os.path.isabs(text) or text.startswith(".")
    return (text if is_clear else f"./{text}").replace("$", "$$")
