"""Locks of files and folders; the operating system releases them when their process ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from emberge.errors import CheckpointError, EmbergeError, OutInUseError, is_temporary
from emberge.files.disk import make_folder, writing
from emberge.files.strangers import open_regular

# `find_holder` takes a shared lock for a moment; a run that starts in that moment must not be refused.
_PATIENCE_SECONDS = 0.3
_LONGEST_HOLDER = 500  # bytes of a lock's file that are shown


class FileLock:
    """A lock file, which one process at a time can lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def lock(self, patience: float = _PATIENCE_SECONDS) -> Iterator[None]:
        """Lock the file inside the block, after waiting up to `patience` seconds.

        The file then names this process.

        Raises:
            OutInUseError: if another process still has the lock; the message names it.
        """
        with self.path.open("ab+") as file:
            if not _try_lock(file, patience):
                raise OutInUseError(
                    f"{self.path.parent} is in use by {_read_holder(file)}; "
                    "wait for it, stop it, or choose another --out"
                )
            file.truncate(0)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(f"process {os.getpid()} on {socket.gethostname()}, since {since}".encode())
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)

    @contextmanager
    def lock_when_free(self) -> Iterator[None]:
        """Lock the file inside the block, after waiting until no other process has it locked.

        On a file system without locks, the block starts at once.
        """
        with self.path.open("ab") as file:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def find_holder(self) -> str | None:
        """Return a text on the process that has the file locked now; None if it is free or missing."""
        try:
            with open_regular(self.path) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return _read_holder(file)
                return None
        except FileNotFoundError:
            return None


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Create a work folder and lock it against other processes while the `with` block runs.

    The folder itself is locked, so no lock file remains. If the file system cannot lock folders, other
    processes are not excluded. After an error of the inputs, which would recur in another call, the folder is
    removed. After an error of a disk or a network, and after a kill, it remains.

    Raises:
        CheckpointError: if another process has locked the folder.
    """
    with writing(folder, "the work"):
        handle = _lock_directory(folder)
    try:
        yield
    except EmbergeError as error:
        if not is_temporary(error):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def _lock_directory(folder: Path) -> int:
    while True:
        make_folder(folder)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
        os.close(handle)  # its last holder has published it just now


def _try_lock(file: IO[bytes], patience: float) -> bool:
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


def _read_holder(file: IO[bytes]) -> str:
    file.seek(0)
    # The file is empty if the process has just opened it.
    return file.read(_LONGEST_HOLDER).decode(errors="replace") or "another process"
