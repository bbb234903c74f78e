"""What is done of a piece of work that may be killed, and how its result is published."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from emberge.errors import CheckpointError

__all__ = ["Journal", "publish"]

_NAME = "journal.jsonl"
_INTERVAL = 2.0  # seconds of finished work that a kill may cost


class Journal:
    """Names of finished tensors, kept in the side folder so that a killed merge goes on.

    A name is written only after `sync` has the tensor's bytes on the disk, in batches, because syncing
    is slow. The journal begins with `key`, which says what work this is; a folder that was begun
    for other work is emptied.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / _NAME
        self.done: set[str] = set()
        self._waiting: list[str] = []
        self._lock = threading.Lock()
        self._last = time.monotonic()
        if not self._go_on(key):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self._append([json.dumps({"key": key})])

    def forget(self) -> None:
        """Start over: what was done is not there after all."""
        first = self.path.read_text().partition("\n")[0]
        self.path.write_text(first + "\n")
        self.done.clear()

    def mark(self, name: str, sync: Callable[[], None]) -> None:
        """Note a tensor as finished; now and then have the disk know it."""
        with self._lock:
            self._waiting.append(name)
            if time.monotonic() - self._last < _INTERVAL:
                return
            batch, self._waiting = self._waiting, []
            self._last = time.monotonic()
        sync()
        with self._lock:
            self._append([json.dumps({"done": name}) for name in batch])

    def remove(self) -> None:
        """Take the journal away: the work is whole."""
        self.path.unlink()

    def _go_on(self, key: str) -> bool:
        if not self.path.is_file():
            return False
        # A kill may cut the last line short; it then counts for nothing.
        whole = self.path.read_bytes().rpartition(b"\n")[0]
        try:
            entries = [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            return False
        if not entries or entries[0] != {"key": key}:
            return False
        self.done = {entry["done"] for entry in entries[1:]}
        os.truncate(self.path, len(whole) + 1)
        return True

    def _append(self, lines: list[str]) -> None:
        with self.path.open("a") as file:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())


def publish(side: Path, out: Path) -> None:
    """Put the finished side folder at `out` by one rename.

    Raises:
        CheckpointError: when something else is there.
    """
    hold_free(out)
    for path in side.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            _sync(path)
    side.rename(out)  # an empty folder at `out` is replaced
    _sync(out)
    _sync(out.parent)


def hold_free(out: Path) -> None:
    """Make sure that nothing stands at `out` but perhaps an empty folder.

    Raises:
        CheckpointError: when something does.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out}: is there already; remove it or choose another folder")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
