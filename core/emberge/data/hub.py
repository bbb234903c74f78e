"""Rows of datasets on the Hugging Face hub, through `datasets`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from emberge.data.entry import DataEntry
from emberge.errors import DataError

__all__ = ["hub_key", "hub_name", "hub_rows"]


def hub_name(entry: DataEntry) -> str:
    """How the entry is called in messages: `owner/name/subset[split]@revision`."""
    subset = f"/{entry.subset}" if entry.subset else ""
    revision = f"@{entry.revision}" if entry.revision else ""
    return f"{entry.hub}{subset}[{entry.split}]{revision}"


def hub_rows(entry: DataEntry, *, head: bool = False) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows from 1; with `head` they are streamed, so that looking at the first ones downloads no more.

    Raises:
        ConnectionError: when the hub cannot be reached and the dataset was not downloaded before.
        DataError: when there is no such dataset, subset or split.
    """
    yield from enumerate(_load(entry, streaming=head), start=1)


def hub_key(entry: DataEntry) -> str:
    """A hash of which rows these are: `datasets` derives it of the files' revision and the split."""
    return str(_load(entry, streaming=False)._fingerprint)


def _load(entry: DataEntry, *, streaming: bool) -> Any:
    import datasets

    with _explained(entry):
        return datasets.load_dataset(
            entry.hub,
            entry.subset,
            split=entry.split,
            revision=entry.revision,
            streaming=streaming,
        )


@contextmanager
def _explained(entry: DataEntry) -> Iterator[None]:
    """Turn what `datasets` raises into one line."""
    try:
        yield
    except ConnectionError as error:  # OfflineModeIsEnabled is one
        raise ConnectionError(
            f"dataset {hub_name(entry)} cannot be looked up: the hub cannot be reached and it was not "
            "downloaded before; connect, or give a file as path"
        ) from error
    except (FileNotFoundError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise DataError(
            f"dataset {hub_name(entry)} cannot be loaded: {text[:300]}; correct hub, subset, split or "
            "revision"
        ) from error
