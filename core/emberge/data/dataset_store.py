"""Examples on disk, checked once and indexed, so that they can be read in any order without loading all."""

from __future__ import annotations

import heapq
import itertools
import json
import mmap
import shutil
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

from emberge.contracts import DatasetInfo, Example, Media, has_media, make_content_key, split_parts
from emberge.data.entry import DataEntry
from emberge.data.file_summary import DataDecisions, FileSummary
from emberge.data.row_parser import Row
from emberge.errors import DataError
from emberge.files import publish, write_json
from emberge.seeds import hash_evenly
from emberge.wording import count_noun

STORE_FORMAT = 5
_MEDIA_FILE = "media.json"
DRAWN_NEGATIVES = 3


class ParsedRows:
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
    store: Path | None, key: str | None, origin: str, write: Callable[[Path], FileSummary]
) -> tuple[ParsedRows | None, FileSummary]:
    """Return the rows stored under `key`, or the rows that `write` writes into a folder now.

    `origin` is the folder of the file, to which paths of media are relative. Without a store, the rows are
    in a temporary folder that exists as long as the result. If a file has bad rows, none of its rows are
    stored, and only the summary is returned.
    """
    stored_folder = None
    if store is not None and key is not None:
        stored_folder = _find_rows_folder(store, key, origin)
    if stored_folder is not None and (stored_folder / "summary.json").is_file():
        rows = ParsedRows(stored_folder)
        return rows, rows.summary
    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=".reading-", dir=store))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        summary = write(folder)
        if summary.bad_rows.count or not summary.rows:
            return None, summary
        if stored_folder is not None:
            publish(folder, stored_folder, once=True)
            return ParsedRows(stored_folder), summary
        rows = ParsedRows(folder)
        weakref.finalize(rows, stack.pop_all().close)
        return rows, summary


def _find_rows_folder(store: Path, key: str, origin: str) -> Path:
    """Return the folder of rows with this key and the same media; without one, the first unused folder."""
    places = (store / (f"{key}-{turn}" if turn else key) for turn in itertools.count())
    return next(place for place in places if not place.is_dir() or _has_same_media(place, origin))


def _has_same_media(folder: Path, origin: str) -> bool:
    """Return whether rows have no media, or come from `origin` and have media of unchanged size and time."""
    try:
        stored_origin, *listed = json.loads((folder / _MEDIA_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    return stored_origin == origin and all(_read_stamp(path) == stamp for path, *stamp in listed)


def _read_stamp(path: str) -> list[int]:
    try:
        status = Path(path).stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def write_rows(folder: Path, rows: Iterable[Row], summary: FileSummary, origin: str) -> FileSummary:
    """Write rows, their end offsets and the summary; stop writing after the first bad row.

    Rows with media are stored as those of `origin` alone, as paths are stored absolute. Digests depend
    on the content of media; `summary.stored_hash` depends on their paths, too.
    """
    digest, stored_digest, ends = sha256(), sha256(), array("Q")
    media: dict[str, None] = {}
    with (folder / "rows.jsonl").open("wb") as file:
        for row in rows:
            if summary.bad_rows.count:
                continue  # so that the reader finds all bad rows
            line = json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"
            encoded = line.encode()
            file.write(encoded)
            ends.append(len(encoded) + (ends[-1] if ends else 0))
            digest.update(make_content_key(line).encode())
            if summary.line_by_media_kind:
                stored_digest.update(encoded)
                media |= dict.fromkeys(_list_media_paths(row))
    if summary.bad_rows.count or not summary.rows:
        return summary
    import numpy as np

    np.array(ends, "<u8").tofile(folder / "ends.bin")
    summary.digest = digest.hexdigest()
    if media:
        summary.stored_hash = stored_digest.hexdigest()
        listed = [origin, *([path, *_read_stamp(path)] for path in media)]
        write_json(folder / _MEDIA_FILE, listed, durable=False)
    write_json(folder / "summary.json", summary.plain(), durable=False)
    return summary


def _list_media_paths(row: Row) -> Iterator[str]:
    for text in (row.anchor, *row.positives, *row.negatives):
        if has_media(text):
            yield from (part.path for part in split_parts(text) if isinstance(part, Media))


class StoredDataset:
    """A dataset of stored rows; `row_numbers` are those that a limit keeps. Scores are scaled to 0–1.

    `entry` has the dataset's options, merged from the recipe and the catalogue.
    """

    def __init__(
        self,
        name: str,
        rows: ParsedRows,
        row_numbers: Sequence[int],
        decisions: DataDecisions,
        entry: DataEntry,
    ) -> None:
        self.entry = entry
        weight = entry.weight
        self._rows = rows
        self._row_numbers = row_numbers
        self._decisions = decisions
        self._labels = _LabelledTexts(name, rows) if rows.summary.draws_positives else None
        self.info = build_info(name, rows.summary, decisions, weight, len(row_numbers))
        self.prompt = decisions.prompt
        self.symmetric = decisions.symmetric
        self.notes = decisions.notes
        self.columns = rows.summary.columns
        parts = [STORE_FORMAT, rows.summary.digest, name, decisions.task, len(row_numbers), weight]
        parts += [decisions.prompt, decisions.symmetric, list(decisions.score_range)]
        self.fingerprint = sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def draws_positives(self) -> bool:
        """True if rows are a text and a label, whose positives and negatives are drawn."""
        return self._labels is not None

    def __len__(self) -> int:
        return len(self._row_numbers)

    def __getitem__(self, row: int) -> Example:
        if not -len(self) <= row < len(self):
            raise IndexError(f"{self.info.name} has {count_noun(len(self), 'row')}, not {row}")
        number = self._row_numbers[row]
        stored_row = self._rows[number]
        if self._labels is not None:
            return self._labels.draw_example(number, stored_row)
        return self._decisions.build_example(stored_row)


def sample_rows(count: int, limit: int | None, name: str) -> Sequence[int]:
    """Return at most `limit` of `count` row numbers, in order; a larger limit only adds rows.

    The sample is even, and depends only on the name.
    """
    if limit is None or limit >= count:
        return range(count)
    return sorted(heapq.nsmallest(limit, range(count), key=lambda row: hash_evenly(name, row)))


def build_info(
    name: str, summary: FileSummary, decisions: DataDecisions, weight: float, size: int
) -> DatasetInfo:
    """Return the facts of a dataset of `size` rows, from the summary of its file."""
    scores = None
    if summary.scored_rows:  # those of the whole file, including rows that a limit leaves out
        scores = decisions.scale_score(summary.lowest), decisions.scale_score(summary.highest)
    negatives, media = decisions.negatives, summary.build_media_facts()
    return DatasetInfo(name, decisions.task, size, weight, negatives, scores, media=media)


class _LabelledTexts:
    """The choice of positives and negatives for rows of a text and a label, from all rows of the file.

    The texts drawn for a row depend only on the dataset's name and the row, so they are equal in every epoch
    and bag. A row without a positive or a negative is refused.
    """

    def __init__(self, name: str, rows: ParsedRows) -> None:
        require_pairs(rows.summary)
        self.name, self.rows = name, rows
        self.groups: dict[str, list[int]] = {}
        for number in range(len(rows)):
            self.groups.setdefault(str(rows[number].label), []).append(number)
        self.labels = sorted(self.groups)

    def draw_example(self, number: int, row: Row) -> Example:
        """Return a row with a positive of its label and negatives of others."""
        label = str(row.label)
        group = self.groups[label]
        drawn = hash_evenly(self.name, number) % (len(group) - 1)  # of the rows but this one
        positive = group[drawn + (group[drawn] >= number)]
        other_labels = [other for other in self.labels if other != label]
        negatives = []
        for turn in range(DRAWN_NEGATIVES):
            drawn = hash_evenly(self.name, number, turn) % len(other_labels)
            group = self.groups[other_labels[drawn]]
            negatives.append(group[hash_evenly(self.name, number, turn, "row") % len(group)])
        texts = (self.rows[n].anchor for n in dict.fromkeys(negatives))
        return Example(row.anchor, (self.rows[positive].anchor,), tuple(texts), label=label)


def require_pairs(summary: FileSummary) -> None:
    """Require that every row of a text and a label has a positive and a negative.

    Raises:
        DataError: if a label has only one row, or there is only one label.
    """
    rows_by_label, place = summary.rows_by_label, summary.place
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
