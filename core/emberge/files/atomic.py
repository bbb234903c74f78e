"""Atomic files and folders, complete or absent even after a kill or a power cut, and locks of them.

A file or folder is written under a new side name (`.name.<random>.part`), synced, and renamed. Without the
syncs (`durable=False`) a power cut may leave a name without content: that is for files in a folder that is
published as a whole, and for logs and caches whose readers skip incomplete content. `clear_torn` removes what
a killed writer left.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from emberge.errors import CheckpointError, EmbergeError, OutInUseError, is_temporary
from emberge.files.disk import make_folder, sync, sync_tree, writing
from emberge.files.strangers import open_regular

_SIDE_NAME = re.compile(r"\..+\.[0-9a-f]{16}\.part", re.DOTALL)
_LONGEST_NAME = 200  # characters of a name in its side name, which a file system must take too
# `find_holder` takes a shared lock for a moment; a run that starts in that moment must not be refused.
_PATIENCE_SECONDS = 0.3
_LONGEST_HOLDER = 500  # bytes of a lock's file that are shown


def build_side_name(name: str) -> str:
    """Return a hidden, random name ending with `.part` for a side file of `name`."""
    return f".{name[:_LONGEST_NAME]}.{secrets.token_hex(8)}.part"


def publish(side_path: Path, path: Path, *, once: bool = False) -> None:
    """Sync a finished file or folder and move it to `path` by one rename.

    A file or an empty folder at `path` is replaced. With `once` a folder with content stays, as another
    process has published the same result first.
    """
    if side_path.is_dir() and not side_path.is_symlink():
        sync_tree(side_path)
    else:
        sync(side_path)
    try:
        os.replace(side_path, path)
    except OSError:
        if not (once and path.is_dir()):
            raise
    sync(path.parent)


@contextmanager
def replace_file(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a side path to write to, which is renamed to `path` unless the block raises an error.

    Of several processes that write the file at once, the one that ends last is kept.
    """
    side = path.with_name(build_side_name(path.name))
    try:
        side.touch()
        yield side
        if durable:
            publish(side, path)
        else:
            os.replace(side, path)
    finally:
        side.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a text file atomically: readers find the old content or the new."""
    with replace_file(path, durable=durable) as side:
        # A file's name may have bytes that are no UTF-8, and an error may quote it.
        side.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: object, *, durable: bool = True) -> None:
    """Write an indented JSON file atomically: readers find the old content or the new."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", durable=durable)


def replace_link(link: Path, target: str) -> None:
    """Point a symbolic link at `target`; an older link is replaced atomically."""
    side = link.with_name(build_side_name(link.name))
    side.symlink_to(target)
    os.replace(side, link)
    sync(link.parent)


def replace_folder(path: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a folder under a side name and publish it at `path`, in place of an older folder."""
    make_folder(path.parent)
    with _create_side_folder(path) as side:
        fill(side)
        sync_tree(side)
        if path.exists():
            shutil.rmtree(path)
        publish(side, path)
    return path


def fill_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return the folder, filled atomically by `fill` if it does not exist yet.

    A process that is filling it is waited for.
    """
    if folder.is_dir():
        return folder
    make_folder(folder.parent)
    lock = folder.with_name(f".{folder.name}.lock")
    with FileLock(lock).lock_when_free():
        try:
            if not folder.is_dir():
                with _create_side_folder(folder) as side:
                    fill(side)
                    publish(side, folder, once=True)
        finally:
            lock.unlink(missing_ok=True)
    return folder


def clear_torn(folder: Path, *, deep: bool = False) -> None:
    """Remove the side files, folders and links that killed processes left in a folder.

    Nobody else may write there. With `deep`, those in subfolders are removed too.
    """
    for directory, folders, files in os.walk(folder):
        for path in [Path(directory, name) for name in (*folders, *files)]:
            if _SIDE_NAME.fullmatch(path.name):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        folders[:] = [name for name in folders if deep and not _SIDE_NAME.fullmatch(name)]


def link_or_copy(source: str, target: str) -> None:
    """Hard-link a file, or copy it if the file system has no hard links."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@contextmanager
def _create_side_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder under a side name of `path`; at the end it is removed if it still exists."""
    side = path.with_name(build_side_name(path.name))
    side.mkdir()
    try:
        yield side
    finally:
        shutil.rmtree(side, ignore_errors=True)


@dataclass(frozen=True)
class FileLock:
    """A lock file, which one process at a time can lock; the system releases it when the process ends."""

    path: Path

    @contextmanager
    def lock(self, patience: float = _PATIENCE_SECONDS) -> Iterator[None]:
        """Lock the file inside the block, after waiting up to `patience` seconds.

        The file then names this process.

        Raises:
            OutInUseError: if another process still has the lock; the message names it.
            OSError: if the file cannot be created, or its file system has no locks.
        """
        until = time.monotonic() + patience
        with self.path.open("ab+") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise OutInUseError(
                            f"{self.path.parent} is in use by {_read_holder(file)}; "
                            "wait for it, stop it, or choose another folder"
                        ) from None
                    time.sleep(0.02)
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


def _read_holder(file: IO[bytes]) -> str:
    file.seek(0)
    # The file is empty if the process has just opened it.
    return file.read(_LONGEST_HOLDER).decode(errors="replace") or "another process"
