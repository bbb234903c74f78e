"""Loading of datasets: each row is read and checked once, then stored for random access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from emberge.contracts import BadRow, DataRef, Dataset, Example, Reader, TaskKind, Workspace
from emberge.data.columns import LayoutError
from emberge.data.data_sources import DataSource, find_reader, list_sources, refuse_clashes
from emberge.data.dataset_store import StoredDataset, open_rows, sample_rows, write_rows
from emberge.data.entry import Columns, DataEntry
from emberge.data.file_summary import FileSummary, decide_data, parse_rows
from emberge.data.media_values import MediaValues
from emberge.data.row_parser import RowParser
from emberge.errors import DataError
from emberge.media import MediaFolder
from emberge.wording import format_path


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
    sources = [
        source
        for entry in entries
        for source in list_sources(entry, readers=readers, resolve=resolve)
    ]
    refuse_clashes(sources)
    datasets: list[StoredDataset] = []
    problems: list[str] = []
    for source in sources:
        try:
            datasets.append(_load_source(source, limit, store))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return datasets


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


def _load_source(source: DataSource, limit: int | None, store: Path | None) -> StoredDataset:
    origin = "" if source.path is None else str(source.path.parent.absolute())

    def write(folder: Path) -> FileSummary:
        summary = FileSummary(source.place)
        media = MediaFolder(store and store / "media", source.path and source.path.parent)
        rows = parse_rows(source.rows(), source.entry, summary, MediaValues(media))
        return write_rows(folder, (row for _, row in rows), summary, origin)

    try:
        key = source.compute_key() if store is not None else None
        rows, summary = open_rows(store and store / "examples", key, origin, write)
    except ConnectionError as error:
        raise DataError(str(error)) from error
    summary.place = source.place
    decisions = decide_data(summary, source.entry)
    assert rows is not None  # otherwise decide_data has raised an error
    limits = [n for n in (limit, source.entry.limit) if n is not None]
    row_numbers = sample_rows(len(rows), min(limits, default=None), source.name)
    return StoredDataset(source.name, rows, row_numbers, decisions, source.entry)


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
    return [(number, decisions.build_example(row)) for number, row in rows]


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
        layout = RowParser(columns).find_first_layout(row)
    except LayoutError as error:
        raise DataError(f"{format_path(path)}:{line}: {error}") from None
    if layout.is_single:
        return "text"
    if layout.is_labelled:
        return "classification"
    return "sts" if layout.score is not None and not layout.negatives else "retrieval"


def list_texts(datasets: Iterable[Dataset]) -> Iterator[str]:
    """Yield every text of datasets in the order of rows: anchor, positives, negatives."""
    for dataset in datasets:
        for row in range(len(dataset)):
            example = dataset[row]
            yield from (example.anchor, *example.positives, *example.negatives)
