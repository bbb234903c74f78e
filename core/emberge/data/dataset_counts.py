"""Datasets as they are before a training: every row read, checked and counted, and none of them kept."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from emberge.contracts import DataRef, DatasetInfo, Reader
from emberge.data.data_sources import DataSource, expand, refuse_clashes
from emberge.data.dataset_store import dataset_info, require_pairs
from emberge.data.entry import DataEntry
from emberge.data.file_summary import FileSummary, decide_data, understood
from emberge.data.rows.media_values import MediaValues
from emberge.errors import DataError
from emberge.media import MediaFolder


def count_datasets(
    entries: Sequence[DataEntry],
    *,
    readers: Sequence[Reader],
    resolve: Callable[[DataRef], Path],
) -> list[DatasetInfo]:
    """Return what `load_datasets` would load from files, in order, without keeping a row.

    A file that several trainings name is read once, until it changes, whatever share each takes of it.

    Raises:
        DataError: with one line for each bad row of any dataset (twenty for a file, then a count), and
            for files that are missing or cannot be understood.
    """
    sources = [
        source for entry in entries for source in expand(entry, readers=readers, resolve=resolve)
    ]
    refuse_clashes(sources)
    infos: list[DatasetInfo] = []
    problems: list[str] = []
    for source in sources:
        try:
            infos.append(_counted(source))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return infos


def _counted(source: DataSource) -> DatasetInfo:
    assert source.path is not None
    status = source.path.stat()
    entry = DataEntry(
        columns=source.entry.columns,
        task=source.entry.task,
        score_range=source.entry.score_range,
        first=source.entry.first,
    )
    state = (str(source.path.absolute()), status.st_size, status.st_mtime_ns)
    summary, rows_by_label = _read(dataclasses.replace(source, name="", entry=entry), state)
    decisions = decide_data(summary, source.entry)
    if summary.labelled:
        require_pairs(rows_by_label, summary.place)
    limit = source.entry.limit
    size = summary.rows if limit is None else min(limit, summary.rows)
    return dataset_info(source.name, summary, decisions, source.entry.weight, size)


@functools.lru_cache(maxsize=256)
def _read(
    source: DataSource,
    state: tuple[str | int, ...],  # noqa: ARG001 - it ages the memory
) -> tuple[FileSummary, Mapping[str, int]]:
    """Return the counts of a file's rows, and the rows of each label."""
    summary, rows_by_label = FileSummary(source.place), Counter[str]()
    media = MediaValues(MediaFolder(beside=source.path and source.path.parent))
    for row in understood(source.rows(), source.entry, summary, media):
        if summary.labelled:
            rows_by_label[str(row.label)] += 1
    return summary, rows_by_label
