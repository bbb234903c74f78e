"""What is done of a piece of work that may be killed, and how its result is published."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from emberge.errors import CheckpointError
from emberge.merging.disk import sync, writing

__all__ = ["Journal", "hold_free", "publish", "working_in"]

_NAME = "journal.jsonl"
_INTERVAL = 2.0  # seconds of finished work that a kill may cost
_WEIGHTS = ".safetensors"


class Journal:
    """Names of finished tensors, kept in the side folder so that a killed merge goes on.

    A name is written only after `sync` has the tensor's bytes on the disk, in batches, because syncing
    is slow. The journal begins with `key`, which says what work this is; a folder that was begun
    for other work is emptied, and one that goes on keeps nothing but weights.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / _NAME
        self.done: set[str] = set()
        self._waiting: list[str] = []
        self._lock = threading.Lock()
        self._last = time.monotonic()
        with writing(folder, "the work"):
            folder.mkdir(parents=True, exist_ok=True)
            if self._go_on(key):
                _keep_weights(folder)
            else:
                _empty(folder)
                self._append([json.dumps({"key": key})])
                sync(folder)

    def forget(self) -> None:
        """Start over: what was done is not there after all."""
        self.done.clear()
        with writing(self.path.parent, _NAME), self.path.open("rb+") as file:
            file.readline()
            file.truncate()
            os.fsync(file.fileno())

    def mark(self, name: str, sync: Callable[[], None]) -> None:
        """Note a tensor as finished; now and then have the disk know it."""
        with self._lock:
            self._waiting.append(name)
            if time.monotonic() - self._last < _INTERVAL:
                return
            batch, self._waiting = self._waiting, []
            self._last = time.monotonic()
        sync()
        with self._lock, writing(self.path.parent, _NAME):
            self._append([json.dumps({"done": name}) for name in batch])

    def remove(self) -> None:
        """Take the journal away: the work is whole."""
        self.path.unlink()

    def _go_on(self, key: str) -> bool:
        if not self.path.is_file():
            return False
        # A kill may cut the last line short; it then counts for nothing.
        whole, end, _ = self.path.read_bytes().rpartition(b"\n")
        try:
            first, *rest = (json.loads(line) for line in whole.splitlines())
            done = {entry["done"] for entry in rest}
        except (ValueError, TypeError, KeyError):
            return False
        if first != {"key": key}:
            return False
        self.done = done
        os.truncate(self.path, len(whole) + len(end))
        return True

    def _append(self, lines: list[str]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())


def _empty(folder: Path) -> None:
    (folder / _NAME).unlink(missing_ok=True)  # first: without it the rest counts for nothing
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _keep_weights(folder: Path) -> None:
    """Take away what was added to the weights by a run that may have had other configs to add."""
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            if not name.endswith(_WEIGHTS) and Path(place, name) != folder / _NAME:
                Path(place, name).unlink()
        with suppress(OSError):  # there are weights in it
            os.rmdir(place)


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a side folder, which is made, until its result is published.

    The folder itself is locked: the system lets go when the process ends in any way, and nothing is
    left behind. Where a file system cannot lock folders, nobody is kept out.

    Raises:
        CheckpointError: when another process works there.
    """
    with writing(folder, "the work"):
        handle = _locked(folder)
    try:
        yield
    finally:
        os.close(handle)


def _locked(folder: Path) -> int:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise CheckpointError(
                f"{folder}: another process is at work on the same result; wait for it or stop it"
            ) from None
        except OSError:  # a network folder
            return handle
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(folder)):
                return handle
        os.close(handle)  # the one who worked there has published it just now


def publish(side: Path, out: Path) -> None:
    """Put the finished side folder, which the disk has whole, at `out` by one rename.

    Raises:
        CheckpointError: when something else is there.
    """
    hold_free(out)
    with writing(out, "the result"):
        sync(side)  # that the journal is gone
        side.rename(out)  # an empty folder at `out` is replaced
        sync(out.parent)


def hold_free(out: Path) -> None:
    """Make sure that nothing stands at `out` but perhaps an empty folder.

    Raises:
        CheckpointError: when something does.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out}: is there already; remove it or choose another folder")
