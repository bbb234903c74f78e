"""The data that a user names: rows (a file, a catalogue, a hub dataset) or a folder of documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from emberge import Columns, DataEntry, DataError, DataRef, RecipeError, suggest

# Words by which a user may name a column, by its part of an example.
PART_BY_WORD = {
    **dict.fromkeys(("anchor", "query", "question"), "anchor"),
    **dict.fromkeys(("positive", "document", "passage", "answer"), "positive"),
    "negative": "negative",
    "score": "score",
    "label": "label",
}
DOCUMENT_SUFFIXES = (".txt", ".md", ".html", ".htm")
# Kinds of data: rows of queries and documents, or documents alone.
DataKind = Literal["rows", "documents"]
_HUB_PREFIX = "hub:"


@dataclass(frozen=True, kw_only=True)
class AdaptData:
    """Data as its user named it, its kind, and the entry by which a recipe names it."""

    label: str
    kind: DataKind = "rows"
    entry: Mapping[str, Any] = field(default_factory=dict)

    def to_data_entry(self) -> DataEntry:
        """Return the entry as the core reads it."""
        options = {key: value for key, value in self.entry.items() if key != "columns"}
        if "path" in options:
            options["path"] = DataRef(options["path"])
        return DataEntry(**options, columns=Columns(**self.entry.get("columns", {})))


def parse_columns(words: Iterable[str]) -> dict[str, str]:
    """Return the column of each part of an example, from words such as `query=question,document=text`.

    Raises:
        RecipeError: if a word is no `part=column`, a part is unknown, or a part is named twice.
    """
    columns: dict[str, str] = {}
    for word in chain.from_iterable(listed.split(",") for listed in words):
        name, equals, column = (text.strip() for text in word.partition("="))
        if not equals or not name or not column:
            raise RecipeError(f"--columns {word}: write query=COLUMN,document=COLUMN")
        part = PART_BY_WORD.get(name)
        if part is None:
            reverse = f"; the part comes first: {column}={name}" if column in PART_BY_WORD else ""
            hint = reverse or suggest(name, PART_BY_WORD) or f"; parts: {', '.join(PART_BY_WORD)}"
            raise RecipeError(f"--columns {word}: there is no part '{name}'{hint}")
        if part in columns:
            raise RecipeError(
                f"--columns: {part} has two columns, '{columns[part]}' and '{column}'"
            )
        columns[part] = column
    return columns


def recognise_data(text: str, columns: Mapping[str, str] | None = None) -> AdaptData:
    """Return the data that the text names: `hub:owner/name`, a file of rows, or a folder of any kind.

    Raises:
        DataError: if there is no such file or folder, or the folder has nothing that is known.
    """
    options: dict[str, Any] = {"columns": dict(columns)} if columns else {}
    if text.startswith(_HUB_PREFIX):
        return AdaptData(label=text, entry={"hub": text.removeprefix(_HUB_PREFIX), **options})
    path = Path(text)
    if path.is_dir() and not (path / "datasets.yaml").is_file():
        return _recognise_folder(path, text)
    if not path.exists():
        raise DataError(_explain_missing(path, text))
    if path.suffix.lower() in DOCUMENT_SUFFIXES:
        raise DataError(
            f"{text}: one document; name the folder of all documents, or a file with a query and "
            "its document in each row"
        )
    return AdaptData(label=text, entry={"path": text, **options})


def _recognise_folder(path: Path, text: str) -> AdaptData:
    files = sorted(file for file in path.rglob("*") if file.is_file())
    stems = {file.name.partition(".")[0] for file in files if file.parent == path}
    if {"corpus", "queries"} <= stems:
        raise DataError(
            f"{text}: is a BEIR set; write its judged pairs as a file of rows, each a query with the texts "
            "that answer it (`query` and `pos`)"
        )
    if "corpus" in stems or any(file.suffix.lower() in DOCUMENT_SUFFIXES for file in files):
        return AdaptData(label=text, kind="documents", entry={"path": text})
    listed = ", ".join(file.name for file in files[:5]) or "no files"
    raise DataError(
        f"{text}: the folder has no documents ({', '.join(DOCUMENT_SUFFIXES)}) and no datasets.yaml; it has "
        f"{listed}; name a file of rows in it"
    )


def _explain_missing(path: Path, text: str) -> str:
    siblings = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = suggest(path.name, siblings)
    hub_hint = (
        f"; a dataset of the hub is written hub:{text}"
        if text.count("/") == 1 and not path.suffix and not hint
        else ""
    )
    return f"{text}: there is no such file or folder{hint}{hub_hint}"
