"""One run at a time in an OUT: a lock that its holder's death opens."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from emberge.errors import EmbergeError

__all__ = ["Holder", "OutInUseError", "lock_folder", "lock_holder"]

# `lock_holder` takes a shared lock for a moment; a run that starts just then must not be turned away.
_PATIENCE = 0.3


@dataclass(frozen=True)
class Holder:
    """Who runs in an OUT."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class OutInUseError(EmbergeError):
    """Another run works in the same OUT."""

    exit_code = 2


@contextmanager
def lock_folder(path: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold the lock file `path`; the system lets go of it when the process ends in any way.

    Another holder is given `patience` seconds to let go.

    Raises:
        OutInUseError: naming the process that holds it.
    """
    with path.open("a+", encoding="utf-8") as file:
        if not _lock(file, patience):
            raise OutInUseError(
                f"{path.parent} is in use by {_read(file) or 'another process'}; "
                "wait for it, stop it, or choose another --out"
            )
        file.truncate(0)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        me = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        file.write(json.dumps(me))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def lock_holder(path: Path) -> Holder | None:
    """Who holds the lock now; None when nobody does."""
    try:
        with path.open("r", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read(file) or Holder(0, "an unknown host", "an unknown time")
            return None
    except FileNotFoundError:
        return None


def _lock(file: IO[str], patience: float) -> bool:
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        else:
            return True


def _read(file: IO[str]) -> Holder | None:
    file.seek(0)
    try:
        return Holder(**json.load(file))
    except (ValueError, TypeError):
        return None  # the holder has only just opened it
