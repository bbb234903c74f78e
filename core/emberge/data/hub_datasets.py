"""Rows of datasets on the Hugging Face hub, through `datasets`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from emberge.data.entry import DataEntry
from emberge.errors import AccessError, DataError


def describe_hub_entry(entry: DataEntry) -> str:
    """Return the entry's name for messages: `owner/name/subset[split]@revision`."""
    subpath = "".join(f"/{part}" for part in (entry.subset, entry.folder) if part)
    revision = f"@{entry.revision}" if entry.revision else ""
    documents = f" with {entry.documents}" if entry.documents else ""
    return f"{entry.hub}{subpath}[{entry.split}]{revision}{documents}"


def read_hub_rows(
    entry: DataEntry, *, head: bool = False
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (number from 1, row); with `head`, or an entry's `first`, only the rows taken are downloaded.

    With `head`, rows have the ids of documents instead of their texts, as the texts need the whole subset.

    Raises:
        ConnectionError: if the hub cannot be reached and the dataset was not downloaded before.
        DataError: if there is no such dataset, subset or split, or no such document.
    """
    rows = enumerate(_load_rows(entry, streaming=head or entry.first is not None), start=1)
    if entry.documents is None:
        yield from rows
        return
    documents = None if head else _Documents(entry)
    columns = [name for name in (entry.columns.positive, entry.columns.negative) if name]
    for number, row in rows:
        ids = {column: _list_document_ids(row.get(column)) for column in columns}
        yield number, {**row, **(ids if documents is None else documents.read_texts(ids))}


def _list_document_ids(value: Any) -> list[str]:
    """Return the ids in a column: one, a list, or records with the field `id`."""
    keys = value if isinstance(value, list) else [value] if value else []
    return [str(key["id"] if isinstance(key, Mapping) else key) for key in keys]


class _Documents:
    """The documents of an entry by their ids; their texts stay on the disk until they are needed."""

    def __init__(self, entry: DataEntry) -> None:
        subset = replace(entry, subset=entry.documents, documents=None)
        self._name = describe_hub_entry(subset)
        self._rows = _load_rows(subset, streaming=False)
        for column in ("id", "text"):
            if column not in self._rows.column_names:
                raise DataError(
                    f"dataset {self._name} has no column '{column}' (columns: "
                    f"{', '.join(self._rows.column_names)}); correct `documents`"
                )
        self._row_numbers = {str(key): number for number, key in enumerate(self._rows["id"])}

    def read_texts(self, ids: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Return the texts of the documents with these ids, by column.

        Raises:
            DataError: if there is no document with an id, or the document has no text.
        """
        return {column: [self._read_text(key) for key in keys] for column, keys in ids.items()}

    def _read_text(self, key: str) -> str:
        row_number = self._row_numbers.get(key)
        text = None if row_number is None else self._rows[row_number]["text"]
        if not text:
            lack = "no document" if row_number is None else "no text for the document"
            raise DataError(
                f"dataset {self._name} has {lack} '{key}'; restore the texts as the dataset's page says, "
                "and give the result as path"
            )
        return str(text)


def hash_hub_rows(entry: DataEntry) -> str:
    """Return a hash of the rows, which `datasets` derives from the files' revision and the split.

    For an entry with `first`, the hash is computed without downloading rows.
    """
    if entry.documents is not None:
        rows = replace(entry, documents=None)
        texts = replace(entry, subset=entry.documents, documents=None, first=None)
        return f"{hash_hub_rows(rows)}+{hash_hub_rows(texts)}"
    if entry.first is None:
        return str(_load_rows(entry, streaming=False)._fingerprint)
    import datasets

    with _explain_error(entry):
        builder = datasets.load_dataset_builder(
            entry.hub, entry.subset, data_dir=entry.folder, revision=entry.revision
        )
    return f"{builder.config_id}/{builder.hash}[{entry.split}]"


def _load_rows(entry: DataEntry, *, streaming: bool) -> Any:
    import datasets

    with _explain_error(entry):
        rows = datasets.load_dataset(
            entry.hub,
            entry.subset,
            data_dir=entry.folder,
            split=entry.split,
            revision=entry.revision,
            streaming=streaming,
        )
    for name, feature in (rows.features or {}).items():
        # The library needs a further package to decode sounds; here the bytes are read like those
        # of any file.
        if (plain_feature := _disable_decoding(feature)) != feature:
            rows = rows.cast_column(name, plain_feature)
    return rows


def _disable_decoding(feature: Any) -> Any:
    """Return a column's type with decoding disabled: images and sounds are read as bytes and paths."""
    import datasets

    if isinstance(feature, datasets.Image | datasets.Audio):
        return replace(feature, decode=False)
    if isinstance(feature, datasets.List | datasets.LargeList):
        return replace(feature, feature=_disable_decoding(feature.feature))
    if isinstance(feature, dict):
        return {name: _disable_decoding(inner_feature) for name, inner_feature in feature.items()}
    return feature


@contextmanager
def _explain_error(entry: DataEntry) -> Iterator[None]:
    """Turn an exception of `datasets` into a DataError of one line."""
    name = f"dataset {describe_hub_entry(entry)}"
    try:
        yield
    except ConnectionError as error:  # includes OfflineModeIsEnabled
        raise ConnectionError(
            f"{name} cannot be looked up: the hub cannot be reached and it was not downloaded before; "
            "connect, or give a file as path"
        ) from error
    except (FileNotFoundError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())
        if "is a gated dataset" in text:
            remedy = "accept its terms on its page, then log in with `hf auth login`"
            raise AccessError(f"{name} is gated: {remedy}") from error
        raise DataError(
            f"{name} cannot be loaded: {text[:300]}; correct hub, subset, folder, split or revision"
        ) from error
