"""Atomic files and folders: complete or absent, even after a kill or a power cut.

A file or folder is written under a new side name (`.name.<random>.part`), synced, and renamed. Without the
syncs (`durable=False`) a power cut may leave a name without content: that is for files in a folder that is
published as a whole, and for logs and caches whose readers skip incomplete content. `clear_torn` removes what
a killed writer left.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from emberge.files.disk import make_folder, sync, sync_tree
from emberge.files.locks import FileLock

_SIDE_NAME = re.compile(r"\..+\.[0-9a-f]{16}\.part", re.DOTALL)
_LONGEST_NAME = 200  # characters of a name in its side name, which a file system must take too


def build_side_name(name: str) -> str:
    """Return a hidden, random name ending with `.part` for a side file of `name`."""
    return f".{name[:_LONGEST_NAME]}.{secrets.token_hex(8)}.part"


def publish(side: Path, path: Path, *, once: bool = False) -> None:
    """Sync a finished file or folder and move it to `path` by one rename.

    A file or an empty folder at `path` is replaced. With `once` a folder with content stays, as another
    process has published the same result first.
    """
    if side.is_dir() and not side.is_symlink():
        sync_tree(side)
    else:
        sync(side)
    try:
        os.replace(side, path)
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
