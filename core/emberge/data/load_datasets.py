"""From entries of a recipe to datasets: read, checked, indexed and ready for random access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from emberge.contracts.dataset import Dataset, Reader
from emberge.contracts.reference import DataRef
from emberge.data.catalogue import load_catalogue
from emberge.data.data_sources import DataSource, expand, refuse_clashes
from emberge.data.dataset_store import StoredDataset, open_rows, write_rows
from emberge.data.entry import DataEntry
from emberge.data.evaluation.eval_set import load_eval_set
from emberge.data.file_summary import FileSummary, decide_data, understood
from emberge.data.first_rows import CheckedData, FirstRows, check_entries, first_examples
from emberge.data.sampling import sample_rows
from emberge.errors import DataError

__all__ = [
    "CheckedData",
    "FirstRows",
    "check_entries",
    "first_examples",
    "load_catalogue",
    "load_datasets",
    "load_eval_set",
]


def load_datasets(
    entries: Sequence[DataEntry],
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path],
    limit: int | None = None,
    store: Path | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[Dataset]:
    """The datasets that the entries name, in order, every row of them read and checked once.

    Rows lie on disk, in `store` where the next load finds them by content (a temporary place without
    one), and are read from there one by one. `limit` thins each dataset as an entry's own `limit` does,
    to an even sample that depends on its name alone. `warn` hears what was decided in the user's place.

    Raises:
        DataError: with one line for each bad row of any dataset (twenty for a file, then a count), and
            for files that are missing or cannot be understood.
    """
    sources = [
        source for entry in entries for source in expand(entry, readers=readers, resolve=resolve)
    ]
    refuse_clashes(sources)
    datasets: list[Dataset] = []
    faults: list[str] = []
    for source in sources:
        try:
            dataset = _load(source, limit, store / "examples" if store is not None else None)
        except DataError as error:
            faults.append(str(error))
            continue
        datasets.append(dataset)
        for note in dataset.notes if warn is not None else ():
            warn(f"{source.name}: {note}")  # type: ignore[misc]
    if faults:
        raise DataError("\n".join(faults))
    return datasets


def _load(source: DataSource, limit: int | None, store: Path | None) -> StoredDataset:
    def write(folder: Path) -> FileSummary:
        tally = FileSummary(source.place)
        return write_rows(folder, understood(source.rows(), source.entry, tally), tally)

    try:
        rows, tally = open_rows(store, source.key() if store is not None else None, write)
    except ConnectionError as error:
        raise DataError(str(error)) from error
    tally.place = source.place
    settled = decide_data(tally, source.entry)
    assert rows is not None  # settle has raised otherwise
    limits = [n for n in (limit, source.entry.limit) if n is not None]
    chosen = sample_rows(len(rows), min(limits, default=None), source.name)
    return StoredDataset(source.name, rows, chosen, settled, source.entry.weight)
