"""Examples on disk, checked once and indexed, so that they can be read in any order without loading all."""

from __future__ import annotations

import itertools
import json
import mmap
import shutil
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from emberge.contracts import DatasetInfo, Example, Media, content_key, has_media, split_parts
from emberge.data.entry import DataEntry
from emberge.data.file_summary import DataDecisions, FileSummary
from emberge.data.rows.row_parser import Row
from emberge.data.sampling import even_place
from emberge.errors import DataError
from emberge.files import publish, write_json

FORMAT = 3
_MEDIA_FILE = "media.json"
DRAWN_NEGATIVES = 3


class Rows:
    """The parsed rows of one file, in a memory-mapped file of JSON lines."""

    def __init__(self, folder: Path) -> None:
        self.summary = FileSummary(
            **json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        )
        import numpy as np

        self._ends = np.fromfile(folder / "ends.bin", "<u8")
        with (folder / "rows.jsonl").open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> Row:
        start = self._ends[row - 1] if row else 0
        values = json.loads(self._bytes[start : self._ends[row]])
        return Row._make(tuple(value) if isinstance(value, list) else value for value in values)


def open_rows(
    store: Path | None, key: str | None, write: Callable[[Path], FileSummary]
) -> tuple[Rows | None, FileSummary]:
    """Return the rows stored under `key`, or the rows that `write` writes into a folder now.

    Without a store, the rows are in a temporary folder that exists as long as the result. If a file has bad
    rows, none of its rows are stored, and only the summary is returned.
    """
    stored_folder = _find_rows_folder(store, key) if store is not None and key is not None else None
    if stored_folder is not None and (stored_folder / "summary.json").is_file():
        rows = Rows(stored_folder)
        return rows, rows.summary
    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".reading-", dir=store))
    is_stored = False
    try:
        summary = write(folder)
        if summary.bad_rows.count or not summary.rows:
            return None, summary
        if stored_folder is not None:
            publish(folder, stored_folder, once=True)
            return Rows(stored_folder), summary
        rows = Rows(folder)
        weakref.finalize(rows, shutil.rmtree, folder, ignore_errors=True)
        is_stored = True
        return rows, summary
    finally:
        if not is_stored:
            shutil.rmtree(folder, ignore_errors=True)


def _find_rows_folder(store: Path, key: str) -> Path:
    """Return the folder of rows with this key and unchanged media; without one, the first unused folder."""
    places = (store / (f"{key}-{turn}" if turn else key) for turn in itertools.count())
    return next(folder for folder in places if not folder.is_dir() or _is_media_unchanged(folder))


def _is_media_unchanged(folder: Path) -> bool:
    """Return whether the media files of rows are unchanged, by path, size and time."""
    try:
        listed = json.loads((folder / _MEDIA_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    return all(_read_stamp(path) == stamp for path, *stamp in listed)


def _read_stamp(path: str) -> list[int]:
    try:
        status = Path(path).stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def write_rows(folder: Path, rows: Iterable[Row], summary: FileSummary) -> FileSummary:
    """Write rows and their end offsets; stop writing after the first bad row."""
    with (folder / "rows.jsonl").open("wb") as file:
        writer = _RowWriter(file)
        for row in rows:
            if not summary.bad_rows.count:
                writer.write(row, has_media=bool(summary.media))
    if not summary.bad_rows.count and summary.rows:
        writer.finish(folder, summary)
    return summary


@dataclass
class _RowWriter:
    """The writer of a file's rows; digests depend on the content of media, not on their paths."""

    rows: BinaryIO
    digest: Any = field(default_factory=sha256)
    stored_digest: Any = field(default_factory=sha256)
    """Digest of the rows with the paths of their media."""
    ends: array[int] = field(default_factory=lambda: array("Q"))
    media: dict[str, None] = field(default_factory=dict)

    def write(self, row: Row, *, has_media: bool) -> None:
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"
        encoded, content = line.encode(), content_key(line).encode()
        self.rows.write(encoded)
        self.ends.append(len(encoded) + (self.ends[-1] if self.ends else 0))
        self.digest.update(content)
        if has_media:
            self.stored_digest.update(encoded)
            self.media |= dict.fromkeys(_list_media_paths(row))

    def finish(self, folder: Path, summary: FileSummary) -> None:
        """Write the rows' places and the summary."""
        import numpy as np

        np.array(self.ends, "<u8").tofile(folder / "ends.bin")
        summary.digest = self.digest.hexdigest()
        if self.media:
            summary.stored = self.stored_digest.hexdigest()
            stamps = [[path, *_read_stamp(path)] for path in self.media]
            write_json(folder / _MEDIA_FILE, stamps, durable=False)
        write_json(folder / "summary.json", summary.plain(), durable=False)


def _list_media_paths(row: Row) -> Iterator[str]:
    for text in (row.anchor, *row.positives, *row.negatives):
        if has_media(text):
            yield from (part.path for part in split_parts(text) if isinstance(part, Media))


class StoredDataset:
    """A dataset of stored rows; `chosen` are the row numbers that a limit keeps. Scores are scaled to 0–1.

    `entry` has the dataset's options, merged from the recipe and the catalogue.
    """

    def __init__(
        self,
        name: str,
        rows: Rows,
        chosen: Sequence[int],
        decisions: DataDecisions,
        entry: DataEntry,
    ) -> None:
        self.entry = entry
        weight = entry.weight
        self._rows = rows
        self._chosen = chosen
        self._decisions = decisions
        self._labels = _group_by_label(name, rows) if rows.summary.labelled else None
        self.info = dataset_info(name, rows.summary, decisions, weight, len(chosen))
        self.prompt = decisions.prompt
        self.symmetric = decisions.symmetric
        self.notes = decisions.notes
        self.columns = rows.summary.columns
        parts = [FORMAT, rows.summary.digest, name, decisions.task, len(chosen), weight]
        parts += [decisions.prompt, decisions.symmetric, list(decisions.score_range)]
        self.fingerprint = sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def draws(self) -> bool:
        """True if rows are a text and a label, whose positives and negatives are drawn."""
        return self._labels is not None

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, row: int) -> Example:
        if not -len(self) <= row < len(self):
            raise IndexError(f"{self.info.name} has {len(self)} rows, not {row}")
        number = self._chosen[row]
        stored_row = self._rows[number]
        if self._labels is not None:
            return self._labels.example(number, stored_row)
        return self._decisions.example(stored_row)


def dataset_info(
    name: str, summary: FileSummary, decisions: DataDecisions, weight: float, size: int
) -> DatasetInfo:
    """Return the facts of a dataset of `size` rows, from the summary of its file."""
    return DatasetInfo(
        name,
        decisions.task,
        size,
        weight,
        decisions.negatives,
        _read_scores(summary, decisions),
        media=summary.media_facts(),
    )


def _read_scores(summary: FileSummary, decisions: DataDecisions) -> tuple[float, float] | None:
    """Return the lowest and the highest score of the whole file, including rows that a limit leaves out."""
    if not summary.scored:
        return None
    return decisions.scale_score(summary.lowest), decisions.scale_score(summary.highest)


class _LabelledTexts:
    """The choice of positives and negatives for rows of a text and a label, from all rows of the file.

    The texts drawn for a row depend only on the dataset's name and the row, so they are equal in every epoch
    and bag.
    """

    def __init__(self, name: str, rows: Rows, groups: dict[str, list[int]]) -> None:
        self.name, self.rows, self.groups = name, rows, groups
        self.labels = sorted(groups)

    def example(self, number: int, row: Row) -> Example:
        label = str(row.label)
        same_label_rows = self.groups[label]
        positive = _draw_positive(same_label_rows, number, self.name)
        negatives = []
        other_labels = [other for other in self.labels if other != label]
        for turn in range(DRAWN_NEGATIVES):
            group = self.groups[
                other_labels[even_place(self.name, number, turn) % len(other_labels)]
            ]
            negatives.append(group[even_place(self.name, number, turn, "row") % len(group)])
        texts = (self.rows[n].anchor for n in dict.fromkeys(negatives))
        positives = (self.rows[positive].anchor,)
        return Example(row.anchor, positives, tuple(texts), label=label)


def _draw_positive(same: Sequence[int], number: int, name: str) -> int:
    """Return the number of another row with the same label; repeated calls return the same row."""
    other_rows = [row for row in same if row != number]
    return other_rows[even_place(name, number) % len(other_rows)]


def _group_by_label(name: str, rows: Rows) -> _LabelledTexts:
    groups: dict[str, list[int]] = {}
    for number in range(len(rows)):
        groups.setdefault(str(rows[number].label), []).append(number)
    require_pairs(
        {label: len(label_rows) for label, label_rows in groups.items()}, rows.summary.place
    )
    return _LabelledTexts(name, rows, groups)


def require_pairs(rows_by_label: Mapping[str, int], place: str) -> None:
    """Require that every row of a text and a label has a positive and a negative.

    Raises:
        DataError: if a label has only one row, or there is only one label.
    """
    single_row_labels = [label for label, rows in rows_by_label.items() if rows < 2]
    if single_row_labels:
        raise DataError(
            f"{place}: label '{single_row_labels[0]}' has one row only, so it has no positive "
            f"({len(single_row_labels)} such labels); give each label two rows or more"
        )
    if len(rows_by_label) < 2:
        raise DataError(
            f"{place}: all rows have the label '{next(iter(rows_by_label))}'; a training set needs two"
        )
