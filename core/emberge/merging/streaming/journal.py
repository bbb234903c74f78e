"""The journal of a merge: the names of finished tensors, which a killed merge does not make again."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from emberge.files import make_folder, sync, writing

_JOURNAL_FILE = "journal.jsonl"
SYNC_INTERVAL = 2.0  # seconds of finished work that a kill may cost
_WEIGHTS = ".safetensors"


class Journal:
    """A journal of finished tensors in the side folder, from which a killed merge resumes.

    It begins with `key`, which identifies the work: a folder that was begun for other work is emptied, and in
    a folder that is continued, all files but weights are removed. A tensor's name is written, with the
    `remarks` of its work, only after `sync` has put its bytes on the disk, in batches as syncing is slow.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / _JOURNAL_FILE
        self.done: set[str] = set()
        self.remarks: dict[str, Mapping[str, Any]] = {}
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()
        self._last = time.monotonic()
        with writing(folder, "the work"):
            make_folder(folder)
            if self.path.is_file() and self._read_earlier(key):
                _keep_weights(folder)
                return
            self.path.unlink(missing_ok=True)  # first: without it the other files count for nothing
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            self._append_lines([_encode_entry(key=key)])
            sync(folder)

    def forget(self) -> None:
        """Begin an empty journal, for use if the finished tensors' files are missing."""
        self.done.clear()
        self.remarks.clear()
        with writing(self.path.parent, _JOURNAL_FILE), self.path.open("rb+") as file:
            file.readline()
            file.truncate()
            os.fsync(file.fileno())

    def mark(
        self, name: str, sync: Callable[[], None], remarks: Mapping[str, Any] | None = None
    ) -> None:
        """Record a tensor as finished; sync and write the names of finished tensors every few seconds."""
        with self._lock:
            self._waiting.append(
                _encode_entry(done=name, **({"remarks": remarks} if remarks else {}))
            )
            if time.monotonic() - self._last < SYNC_INTERVAL:
                return
        self.flush(sync)

    def flush(self, sync: Callable[[], None]) -> None:
        """Sync, and write the names of all finished tensors."""
        with self._lock:
            batch, self._waiting = self._waiting, []
            self._last = time.monotonic()
        sync()
        with self._lock, writing(self.path.parent, _JOURNAL_FILE):
            self._append_lines(batch)

    def _read_earlier(self, key: str) -> bool:
        """Read the finished tensors of a killed run; return whether the journal was begun with `key`."""
        begun, *lines = self.path.read_bytes().splitlines(keepends=True) or [b""]
        if begun != _encode_entry(key=key):
            return False
        length = len(begun)
        for line in lines:
            entry = _decode_entry(line)
            if entry is None:
                # A kill cut the line short, or a power cut left zeros: the rest counts for nothing.
                os.truncate(self.path, length)
                sync(self.path)  # or the old lines could come back between new ones
                break
            self.done.add(entry["done"])
            self.remarks[entry["done"]] = entry.get("remarks", {})
            length += len(line)
        return True

    def _append_lines(self, lines: list[bytes]) -> None:
        with self.path.open("ab") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())


def _encode_entry(**entry: Any) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _decode_entry(line: bytes) -> dict[str, Any] | None:
    """Return the entry of a finished tensor; None if `_encode_entry` did not write this line."""
    try:
        entry: dict[str, Any] = json.loads(line)
        return entry if isinstance(entry["done"], str) and _encode_entry(**entry) == line else None
    except (ValueError, TypeError, KeyError):
        return None


def _keep_weights(folder: Path) -> None:
    """Remove all files but weights, as the killed run may have added other configs."""
    for directory, _, files in os.walk(folder, topdown=False):
        for name in files:
            if not name.endswith(_WEIGHTS) and Path(directory, name) != folder / _JOURNAL_FILE:
                Path(directory, name).unlink()
        with suppress(OSError):  # there are weights in it
            os.rmdir(directory)
