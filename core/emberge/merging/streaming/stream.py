"""Streaming of jobs into a checkpoint's weights, with a journal by which a killed run continues.

Tensors are measured in granules that only their shape decides, and measures are summed in granule order,
each on one thread: how many workers there are, and how much memory, cannot show in the bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from emberge.files import make_folder, open_ours, sync, sync_tree, writing
from emberge.merging.streaming.cost import queue_bytes
from emberge.merging.streaming.jobs import CopyJob, MergeJob, TensorJob, announce
from emberge.merging.streaming.scheduler import Limits, Progress, by_unit, run_jobs
from emberge.tensor_files import TensorWriter

__all__ = ["CopyJob", "Journal", "Limits", "MergeJob", "TensorJob", "run_jobs", "stream"]


def stream(
    jobs: Sequence[TensorJob],
    path: Path,
    *,
    key: str = "",
    limits: Limits | None = None,
    writer: Callable[[Path], TensorWriter] | None = None,
    progress: Progress | None = None,
    complete: Callable[[Path], None] | None = None,
) -> Path:
    """Run the jobs and write their tensors into the folder `path`, which may have a killed run's part.

    `key` identifies the work: a part that was begun under another key is deleted. The caller
    publishes the folder. `writer` makes the writer, for other names of files, shards or metadata;
    `complete` adds to the folder what is not weights, while a kill still costs no more than that.

    Raises:
        CheckpointError: for inputs that are damaged or not finite, and for a full disk.
    """
    specs = [job.spec for job in jobs]
    plan = [(s.name, list(s.shape), s.dtype) for s in specs]
    # Another release of torch may round otherwise: what one began the other does not go on with.
    work = json.dumps([key, plan, torch.__version__])
    journal = Journal(path, hashlib.sha256(work.encode()).hexdigest())
    files = writer(path) if writer else TensorWriter(path, specs, {})
    if journal.done and not files.resumed:
        journal.forget()
    limits = limits or Limits()
    files.begin(queue_bytes(limits.memory))
    left = [job for job in jobs if job.spec.name not in journal.done]
    for job in jobs:
        job.remarks.update(journal.remarks.get(job.spec.name, {}))
    units = {job.unit for job in left}
    to_read = {unit: members for unit, members in by_unit(jobs).items() if unit in units}
    end_reading = announce([job for members in to_read.values() for job in members])
    try:
        run_jobs(
            left,
            lambda job, start, piece: files.write(job.spec.name, start, piece),
            limits=limits,
            finished=lambda job: files.after_writes(
                lambda: journal.mark(job.spec.name, files.sync, job.remarks)
            ),
            progress=progress,
            units=to_read,
            failed=end_reading,
        )
        files.finish()
    finally:
        files.close()
    with writing(path, "the result"):
        if complete is not None:
            complete(path)
        sync_tree(path, skipped=".safetensors")  # weights are there since they were finished
        journal.remove()
    return path


_NAME = "journal.jsonl"
INTERVAL = 2.0  # seconds of finished work that a kill may cost
_WEIGHTS = ".safetensors"


class Journal:
    """Names of finished tensors, kept in the side folder so that a killed merge goes on.

    With a name go the `remarks` of the work on it, which a continued merge does not do again.

    A name is written only after `sync` has the tensor's bytes on the disk, in batches, because syncing
    is slow. The journal begins with `key`, which identifies the work; a folder that was begun
    for other work is emptied, and one that continues keeps nothing but weights.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / _NAME
        self.done: set[str] = set()
        self.remarks: dict[str, Mapping[str, Any]] = {}
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()
        self._last = time.monotonic()
        with writing(folder, "the work"):
            make_folder(folder)
            if self._go_on(key):
                _keep_weights(folder)
            else:
                _empty(folder)
                self._append([_line(key=key)])
                sync(folder)

    def forget(self) -> None:
        """Start over, when the finished tensors' files are missing."""
        self.done.clear()
        self.remarks.clear()
        with writing(self.path.parent, _NAME), open_ours(self.path, "rb+") as file:
            file.readline()
            file.truncate()
            os.fsync(file.fileno())

    def mark(
        self, name: str, sync: Callable[[], None], remarks: Mapping[str, Any] | None = None
    ) -> None:
        """Note a tensor as finished; every few seconds, sync and write the names noted since."""
        with self._lock:
            self._waiting.append(_line(done=name, **({"remarks": remarks} if remarks else {})))
            if time.monotonic() - self._last < INTERVAL:
                return
            batch, self._waiting = self._waiting, []
            self._last = time.monotonic()
        sync()
        with self._lock, writing(self.path.parent, _NAME):
            self._append(batch)

    def remove(self) -> None:
        """Remove the journal, when the work is whole."""
        self.path.unlink()

    def _go_on(self, key: str) -> bool:
        if not self.path.is_file():
            return False
        begun, *lines = self.path.read_bytes().splitlines(keepends=True) or [b""]
        if begun != _line(key=key):
            return False
        length = len(begun)
        for line in lines:
            entry = _entry_in(line)
            if entry is None:
                # A kill cut the line short, or a power cut left zeros: the rest counts for nothing.
                os.truncate(self.path, length)
                sync(self.path)  # or the old lines could come back between new ones
                break
            self.done.add(entry["done"])
            self.remarks[entry["done"]] = entry.get("remarks", {})
            length += len(line)
        return True

    def _append(self, lines: list[bytes]) -> None:
        with open_ours(self.path, "ab") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())


def _line(**entry: Any) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _entry_in(line: bytes) -> dict[str, Any] | None:
    """Return the entry of a finished tensor; None when the line is not as `_line` wrote it."""
    try:
        entry: dict[str, Any] = json.loads(line)
        return entry if isinstance(entry["done"], str) and _line(**entry) == line else None
    except (ValueError, TypeError, KeyError):
        return None


def _empty(folder: Path) -> None:
    (folder / _NAME).unlink(missing_ok=True)  # first: without it the rest counts for nothing
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _keep_weights(folder: Path) -> None:
    """Remove all but weights, as the run before may have had other configs to add."""
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            if not name.endswith(_WEIGHTS) and Path(place, name) != folder / _NAME:
                Path(place, name).unlink()
        with suppress(OSError):  # there are weights in it
            os.rmdir(place)
