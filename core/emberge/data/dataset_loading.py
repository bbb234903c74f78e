"""Datasets of a recipe's entries: read, checked, indexed and ready for random access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from emberge.contracts import DataRef, Reader
from emberge.data.data_sources import DataSource, expand, refuse_clashes
from emberge.data.dataset_store import StoredDataset, open_rows, write_rows
from emberge.data.entry import DataEntry
from emberge.data.file_summary import FileSummary, decide_data, understood
from emberge.data.rows.media_values import MediaValues
from emberge.data.sampling import sample_rows
from emberge.errors import DataError
from emberge.media import MediaFolder


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

    Rows are on disk, in `store` where the next load finds them by content (a temporary place without
    one), and are read from there one by one. `limit` thins each dataset as an entry's own `limit` does,
    to an even sample that depends on its name alone. `warn` gets a note of each decision that the entry
    leaves open.

    Raises:
        DataError: with one line for each bad row of any dataset (twenty for a file, then a count), and
            for files that are missing or cannot be understood.
    """
    sources = [
        source for entry in entries for source in expand(entry, readers=readers, resolve=resolve)
    ]
    refuse_clashes(sources)
    datasets: list[StoredDataset] = []
    problems: list[str] = []
    for source in sources:
        try:
            dataset = _load(source, limit, store)
        except DataError as error:
            problems.append(str(error))
            continue
        datasets.append(dataset)
        for note in dataset.notes if warn is not None else ():
            warn(f"{source.name}: {note}")  # type: ignore[misc]
    if problems:
        raise DataError("\n".join(problems))
    return datasets


def _load(source: DataSource, limit: int | None, store: Path | None) -> StoredDataset:
    def write(folder: Path) -> FileSummary:
        summary = FileSummary(source.place)
        media = MediaFolder(store and store / "media", source.path and source.path.parent)
        rows = understood(source.rows(), source.entry, summary, MediaValues(media))
        return write_rows(folder, rows, summary)

    try:
        key = source.key() if store is not None else None
        rows, summary = open_rows(store and store / "examples", key, write)
    except ConnectionError as error:
        raise DataError(str(error)) from error
    summary.place = source.place
    decisions = decide_data(summary, source.entry)
    assert rows is not None  # decide_data has raised otherwise
    limits = [n for n in (limit, source.entry.limit) if n is not None]
    chosen = sample_rows(len(rows), min(limits, default=None), source.name)
    return StoredDataset(source.name, rows, chosen, decisions, source.entry)
