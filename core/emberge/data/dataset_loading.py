"""Loading of datasets: each row is read and checked once, then stored for random access or only counted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from emberge.contracts import (
    BadRow,
    DataRef,
    Dataset,
    DatasetInfo,
    Example,
    Reader,
    TaskKind,
    Workspace,
)
from emberge.data.columns import LayoutError
from emberge.data.data_sources import DataSource, expand, find_reader, refuse_clashes
from emberge.data.dataset_store import (
    StoredDataset,
    build_info,
    open_rows,
    require_pairs,
    sample_rows,
    write_rows,
)
from emberge.data.entry import Columns, DataEntry
from emberge.data.file_summary import FileSummary, decide_data, parse_rows
from emberge.data.media_values import MediaValues
from emberge.data.row_parser import RowParser
from emberge.errors import DataError
from emberge.media import MediaFolder
from emberge.wording import format_path

T = TypeVar("T")


def load_datasets(
    entries: Sequence[DataEntry],
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path],
    limit: int | None = None,
    store: Path | None = None,
) -> list[StoredDataset]:
    """Load the datasets that the entries name, in order, every row read and checked once.

    Rows are stored on disk and read from there one by one: in the folder `store`, where a later load of the
    same content finds them, or in a temporary folder if `store` is None. `limit` reduces each dataset, as the
    entry's `limit` does, to an even sample that depends only on the dataset's name.

    Raises:
        DataError: if a file is missing or cannot be understood, or rows are bad; has one line for each
            problem of rows of any dataset (twenty for a file, then a count).
    """
    load = functools.partial(_load_source, limit=limit, store=store)
    return _read_sources(entries, readers, resolve, load)


def load_step_datasets(
    workspace: Workspace,
    entries: Sequence[DataEntry],
    *,
    limit: int | None = None,
    warn: bool = True,
) -> list[StoredDataset]:
    """Load a step's entries as datasets, kept in the store that all steps of an OUT share.

    With `warn`, decisions that an entry leaves open become warnings of the step. See `load_datasets` for
    `limit` and errors.
    """
    datasets = load_datasets(
        entries,
        readers=workspace.readers,
        resolve=workspace.data,
        limit=limit,
        store=workspace.store,
    )
    for dataset in datasets if warn else ():
        for note in dataset.notes:
            workspace.warn(f"{dataset.info.name}: {note}")
    return datasets


def count_datasets(
    entries: Sequence[DataEntry], *, readers: Sequence[Reader], resolve: Callable[[DataRef], Path]
) -> list[DatasetInfo]:
    """Return the facts of the datasets that `load_datasets` would load, without storing rows.

    An unchanged file is read only once, even if several trainings use different shares of it.

    Raises:
        DataError: for the same reasons as `load_datasets`.
    """
    return _read_sources(entries, readers, resolve, _count_source)


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


def _count_source(source: DataSource) -> DatasetInfo:
    assert source.path is not None
    status, entry = source.path.stat(), source.entry
    # Only what decides how rows are read, so that trainings with other shares find the counts.
    read_entry = DataEntry(
        columns=entry.columns, task=entry.task, score_range=entry.score_range, first=entry.first
    )
    state = (str(source.path.absolute()), status.st_size, status.st_mtime_ns)
    summary = _count_rows(dataclasses.replace(source, name="", entry=read_entry), state)
    decisions = decide_data(summary, entry)
    if summary.labelled:
        require_pairs(summary)
    size = summary.rows if entry.limit is None else min(entry.limit, summary.rows)
    return build_info(source.name, summary, decisions, entry.weight, size)


@functools.lru_cache(maxsize=256)
def _count_rows(
    source: DataSource,
    state: tuple[str | int, ...],  # noqa: ARG001 - it ages the memory
) -> FileSummary:
    summary = FileSummary(source.place)
    media = MediaValues(MediaFolder(beside=source.path and source.path.parent))
    for _ in parse_rows(source.rows(), source.entry, summary, media):
        pass
    return summary


def read_examples(
    path: Path, entry: DataEntry, readers: Sequence[Reader], media: MediaValues
) -> list[tuple[int, Example]]:
    """Return the rows of a file as examples, each after its line number, with the checks of training data.

    Raises:
        DataError: if the file cannot be understood, or rows are bad; has a line for each problem.
    """
    summary = FileSummary(format_path(path))
    rows = list(parse_rows(find_reader(path, readers).rows(path), entry, summary, media))
    decisions = decide_data(summary, entry)
    return [(number, decisions.example(row)) for number, row in rows]


def read_task(path: Path, columns: Columns, readers: Sequence[Reader]) -> TaskKind:
    """Return the kind of task that the columns of a file's first row mean.

    Raises:
        DataError: if the columns cannot be understood, or there is no row that can be read.
    """
    line, row = next(find_reader(path, readers).rows(path), (0, None))
    if row is None:
        raise DataError(f"{format_path(path)}: there are no rows; give a file with examples")
    try:
        if isinstance(row, BadRow):
            raise LayoutError(row.message)
        layout = RowParser(columns).find_layout(row)
    except LayoutError as error:
        raise DataError(f"{format_path(path)}:{line}: {error}") from None
    if layout.single:
        return "text"
    if layout.labelled:
        return "classification"
    return "sts" if layout.score is not None and not layout.negatives else "retrieval"


def list_texts(datasets: Iterable[Dataset]) -> Iterator[str]:
    """Yield every text of datasets in the order of rows: anchor, positives, negatives."""
    for dataset in datasets:
        for row in range(len(dataset)):
            example = dataset[row]
            yield from (example.anchor, *example.positives, *example.negatives)
