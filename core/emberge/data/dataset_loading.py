"""Loading of datasets: each row is read and checked once, then stored for random access or only counted."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from emberge.contracts import DataRef, DatasetInfo, Reader, Workspace
from emberge.data.data_sources import DataSource, expand, refuse_clashes
from emberge.data.dataset_store import (
    StoredDataset,
    dataset_info,
    open_rows,
    require_pairs,
    write_rows,
)
from emberge.data.entry import DataEntry
from emberge.data.file_summary import FileSummary, decide_data, parse_rows
from emberge.data.rows.media_values import MediaValues
from emberge.data.sampling import sample_rows
from emberge.errors import DataError
from emberge.media import MediaFolder

T = TypeVar("T")


def load_datasets(
    entries: Sequence[DataEntry],
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path],
    limit: int | None = None,
    store: Path | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[StoredDataset]:
    """Load the datasets that the entries name, in order, every row read and checked once.

    Rows are stored on disk and read from there one by one: in the folder `store`, where a later load of the
    same content finds them, or in a temporary folder if `store` is None. `limit` reduces each dataset, as the
    entry's `limit` does, to an even sample that depends only on the dataset's name. `warn` is called with
    each decision that an entry leaves open.

    Raises:
        DataError: if a file is missing or cannot be understood, or rows are bad; has one line for each
            fault of rows of any dataset (twenty for a file, then a count).
    """

    def load(source: DataSource) -> StoredDataset:
        dataset = _load_source(source, limit, store)
        if warn is not None:
            for note in dataset.notes:
                warn(f"{source.name}: {note}")
        return dataset

    return _read_sources(entries, readers, resolve, load)


def _read_sources(
    entries: Sequence[DataEntry],
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path],
    read: Callable[[DataSource], T],
) -> list[T]:
    """Apply `read` to each source of the entries and return the results, or raise all problems at once."""
    sources = [
        source for entry in entries for source in expand(entry, readers=readers, resolve=resolve)
    ]
    refuse_clashes(sources)
    results: list[T] = []
    problems: list[str] = []
    for source in sources:
        try:
            results.append(read(source))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return results


def _load_source(source: DataSource, limit: int | None, store: Path | None) -> StoredDataset:
    def write(folder: Path) -> FileSummary:
        summary = FileSummary(source.place)
        media = MediaFolder(store and store / "media", source.path and source.path.parent)
        rows = parse_rows(source.rows(), source.entry, summary, MediaValues(media))
        return write_rows(folder, (row for _, row in rows), summary)

    try:
        key = source.key() if store is not None else None
        rows, summary = open_rows(store and store / "examples", key, write)
    except ConnectionError as error:
        raise DataError(str(error)) from error
    summary.place = source.place
    decisions = decide_data(summary, source.entry)
    assert rows is not None  # otherwise decide_data has raised an error
    limits = [n for n in (limit, source.entry.limit) if n is not None]
    row_numbers = sample_rows(len(rows), min(limits, default=None), source.name)
    return StoredDataset(source.name, rows, row_numbers, decisions, source.entry)


def step_datasets(
    workspace: Workspace,
    entries: Sequence[DataEntry],
    *,
    limit: int | None = None,
    warn: bool = True,
) -> list[StoredDataset]:
    """Load a step's entries as datasets, kept in the store that all steps of an OUT share.

    `limit` reduces each dataset to an even sample of at most `limit` rows.
    With `warn`, decisions that an entry leaves open become warnings of the step.

    Raises:
        DataError: for the same reasons as `load_datasets`.
    """
    return load_datasets(
        entries,
        readers=workspace.readers,
        resolve=workspace.data,
        limit=limit,
        store=workspace.store,
        warn=workspace.warn if warn else None,
    )


def count_datasets(
    entries: Sequence[DataEntry],
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path],
) -> list[DatasetInfo]:
    """Return the facts of the datasets that `load_datasets` would load, without storing rows.

    An unchanged file is read only once, even if several trainings use different shares of it.

    Raises:
        DataError: if a file is missing or cannot be understood, or rows are bad; has one line for each
            fault of rows of any dataset (twenty for a file, then a count).
    """
    return _read_sources(entries, readers, resolve, _count_source)


def _count_source(source: DataSource) -> DatasetInfo:
    assert source.path is not None
    status = source.path.stat()
    entry = DataEntry(
        columns=source.entry.columns,
        task=source.entry.task,
        score_range=source.entry.score_range,
        first=source.entry.first,
    )
    state = (str(source.path.absolute()), status.st_size, status.st_mtime_ns)
    summary, rows_by_label = _count_rows(dataclasses.replace(source, name="", entry=entry), state)
    decisions = decide_data(summary, source.entry)
    if summary.labelled:
        require_pairs(rows_by_label, summary.place)
    limit = source.entry.limit
    size = summary.rows if limit is None else min(limit, summary.rows)
    return dataset_info(source.name, summary, decisions, source.entry.weight, size)


@functools.lru_cache(maxsize=256)
def _count_rows(
    source: DataSource,
    state: tuple[str | int, ...],  # noqa: ARG001 - it ages the memory
) -> tuple[FileSummary, Mapping[str, int]]:
    """Return the counts of a file's rows, and the rows of each label."""
    summary, rows_by_label = FileSummary(source.place), Counter[str]()
    media = MediaValues(MediaFolder(beside=source.path and source.path.parent))
    for _, row in parse_rows(source.rows(), source.entry, summary, media):
        if summary.labelled:
            rows_by_label[str(row.label)] += 1
    return summary, rows_by_label
