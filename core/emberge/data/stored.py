"""Examples on disk, checked once and indexed: random access without holding them in memory."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import sys
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from emberge.contracts.dataset import DatasetInfo, Example
from emberge.data.rows import Row
from emberge.data.sampling import place
from emberge.data.tally import Settled, Tally
from emberge.errors import DataError

__all__ = ["FORMAT", "Rows", "StoredDataset", "open_rows", "write_rows"]

FORMAT = 1
DRAWN_NEGATIVES = 3


class Rows:
    """The rows that one file was understood as, in a memory-mapped file of JSON lines."""

    def __init__(self, folder: Path) -> None:
        self.tally = Tally(**json.loads((folder / "tally.json").read_text(encoding="utf-8")))
        self._ends = array("Q")
        with (folder / "ends.bin").open("rb") as file:
            self._ends.fromfile(file, self.tally.rows)
        if sys.byteorder == "big":
            self._ends.byteswap()
        with (folder / "rows.jsonl").open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> Row:
        start = self._ends[row - 1] if row else 0
        values = json.loads(self._bytes[start : self._ends[row]])
        return Row._make(tuple(value) if isinstance(value, list) else value for value in values)


def open_rows(
    store: Path | None, key: str | None, write: Callable[[Path], Tally]
) -> tuple[Rows | None, Tally]:
    """The rows kept under `key`, or those that `write` puts into a folder now.

    Without a store they live in a temporary folder, as long as the result does. Nothing is kept of a file
    with faults: then only the tally comes back.
    """
    kept = store / key if store is not None and key is not None else None
    if kept is not None and (kept / "tally.json").is_file():
        rows = Rows(kept)
        return rows, rows.tally
    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".reading-", dir=store))
    lasts = False
    try:
        tally = write(folder)
        if tally.fault_count or not tally.rows:
            return None, tally
        if kept is not None:
            _publish(folder, kept)
            return Rows(kept), tally
        rows = Rows(folder)
        weakref.finalize(rows, shutil.rmtree, folder, ignore_errors=True)
        lasts = True
        return rows, tally
    finally:
        if not lasts:
            shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, kept: Path) -> None:
    try:
        folder.rename(kept)
    except OSError:
        if not (kept / "tally.json").is_file():  # otherwise another process was quicker
            raise


def write_rows(folder: Path, rows: Iterable[Row], tally: Tally) -> Tally:
    """Write rows and where each ends; nothing more is written once a row had a fault."""
    digest, ends, position = sha256(), array("Q"), 0
    with (folder / "rows.jsonl").open("wb") as file:
        for row in rows:
            if tally.fault_count:
                continue
            line = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            file.write(line)
            digest.update(line)
            position += len(line)
            ends.append(position)
    if tally.fault_count or not tally.rows:
        return tally
    if sys.byteorder == "big":
        ends.byteswap()
    (folder / "ends.bin").write_bytes(ends.tobytes())
    tally.digest = digest.hexdigest()
    side = folder / "tally.json.part"
    side.write_text(json.dumps(tally.plain(), ensure_ascii=False), encoding="utf-8")
    os.replace(side, folder / "tally.json")
    return tally


class StoredDataset:
    """A dataset over stored rows; `chosen` are those that a limit keeps. Scores come scaled to 0–1."""

    def __init__(
        self, name: str, rows: Rows, chosen: Sequence[int], settled: Settled, weight: float
    ) -> None:
        self._rows = rows
        self._chosen = chosen
        self._settled = settled
        self._labels = _by_label(name, rows) if rows.tally.labelled else None
        self.info = DatasetInfo(name, settled.task, len(chosen), weight, settled.negatives)
        self.prompt = settled.prompt
        self.symmetric = settled.symmetric
        self.notes = settled.notes
        self.columns = rows.tally.columns
        said = [FORMAT, rows.tally.digest, name, settled.task, len(chosen), weight]
        said += [settled.prompt, settled.symmetric, list(settled.score_range)]
        self.fingerprint = sha256(json.dumps(said).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, row: int) -> Example:
        if not -len(self) <= row < len(self):
            raise IndexError(f"{self.info.name} has {len(self)} rows, not {row}")
        number = self._chosen[row]
        found = self._rows[number]
        if self._labels is not None:
            return self._labels.example(number, found)
        return self._settled.example(found)


class _ByLabel:
    """Draws positives and negatives for rows that have only a text and a label, from the whole file.

    A row's draws depend on the dataset's name and the row alone: the same in every epoch and bag.
    """

    def __init__(self, name: str, rows: Rows, groups: dict[str, list[int]]) -> None:
        self.name, self.rows, self.groups = name, rows, groups
        self.labels = sorted(groups)

    def example(self, number: int, row: Row) -> Example:
        label = str(row.label)
        same = self.groups[label]
        positive = _draw_positive(same, number, self.name)
        negatives = []
        others = [other for other in self.labels if other != label]
        for turn in range(DRAWN_NEGATIVES):
            group = self.groups[others[place(self.name, number, turn) % len(others)]]
            negatives.append(group[place(self.name, number, turn, "row") % len(group)])
        texts = (self.rows[n].anchor for n in dict.fromkeys(negatives))
        return Example(row.anchor, (self.rows[positive].anchor,), tuple(texts), label=label)


def _draw_positive(same: Sequence[int], number: int, name: str) -> int:
    """Another row of the label, the same one every time."""
    others = [row for row in same if row != number]
    return others[place(name, number) % len(others)]


def _by_label(name: str, rows: Rows) -> _ByLabel:
    groups: dict[str, list[int]] = {}
    for number in range(len(rows)):
        groups.setdefault(str(rows[number].label), []).append(number)
    lonely = [label for label, numbers in groups.items() if len(numbers) < 2]
    if lonely:
        raise DataError(
            f"{rows.tally.place}: label '{lonely[0]}' has one row only, so it has no positive "
            f"({len(lonely)} such labels); give each label two rows or more"
        )
    if len(groups) < 2:
        raise DataError(
            f"{rows.tally.place}: all rows have the label '{next(iter(groups))}'; a set to train on needs two"
        )
    return _ByLabel(name, rows, groups)
