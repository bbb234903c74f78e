"""Files and folders that are whole or absent, also after a kill or a power cut: the one door for renames.

What is written goes under a side name (`.name.part`), is synced, and gets its name by one rename. A file's
data is on the disk once the file was synced, its name once its folder was; without the first, a power cut may
leave a name with nothing behind it. `durable=False` saves the syncs where that costs only time: for a file
inside a folder that is published as a whole, and for logs and caches whose readers pass over torn content.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from emberge.errors import CheckpointError

__all__ = [
    "clear_torn",
    "fill_once",
    "link_or_copy",
    "make_folder",
    "publish",
    "publish_once",
    "replace_file",
    "replace_folder",
    "replace_link",
    "require_free",
    "sync",
    "sync_files",
    "sync_tree",
    "write_json",
    "write_text",
]


def sync(path: Path) -> None:
    """Wait until one file's data, or the names in one folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_files(folder: Path, *, skipped: str = "") -> None:
    """Wait until the files right in a folder, and all its names, are on the disk.

    Files whose names end with `skipped` are left out.
    """
    for path in sorted(folder.iterdir()):
        passed_over = bool(skipped) and path.name.endswith(skipped)
        if path.is_file() and not path.is_symlink() and not passed_over:
            sync(path)
    sync(folder)


def sync_tree(folder: Path, *, skipped: str = "") -> None:
    """Wait until a folder with all below it is on the disk; its own name belongs to its parent.

    Files whose names end with `skipped` are left out.
    """
    for place, _, _ in os.walk(folder, topdown=False):
        sync_files(Path(place), skipped=skipped)


def make_folder(folder: Path) -> None:
    """Create a folder and those above it, with their names on the disk; one that exists is kept."""
    missing = [one for one in (folder, *folder.parents) if not one.is_dir()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync(one.parent)


def publish(side: Path, path: Path) -> None:
    """Sync a finished file or folder and move it to `path` by one rename.

    A file, or an empty folder, that is at `path` is replaced.
    """
    if side.is_dir() and not side.is_symlink():
        sync_tree(side)
    else:
        sync(side)
    os.replace(side, path)
    sync(path.parent)


@contextmanager
def replace_file(path: Path, *, durable: bool = True, shared: bool = False) -> Iterator[Path]:
    """Give a side path to write to, which becomes `path` unless an error leaves the block.

    With `shared` several processes may write the same file at once, each under a side name of its own.
    """
    mark = f".{uuid.uuid4().hex[:12]}" if shared else ""
    side = path.with_name(f".{path.name}{mark}.part")
    try:
        yield side
        if durable:
            publish(side, path)
        else:
            os.replace(side, path)
    except BaseException:
        side.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, *, durable: bool = True, shared: bool = False) -> None:
    """Write a text file, so that a reader finds the old content or the new, and never a part."""
    with replace_file(path, durable=durable, shared=shared) as side:
        side.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object, *, durable: bool = True) -> None:
    """Write a JSON file for people to read, so that a reader finds the old content or the new."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", durable=durable)


def replace_link(link: Path, target: str) -> None:
    """Point a symbolic link at `target`; an older link is replaced at once."""
    side = link.with_name(f".{link.name}.part")
    side.unlink(missing_ok=True)
    side.symlink_to(target)
    os.replace(side, link)
    sync(link.parent)


def replace_folder(path: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a folder under a side name and publish it at `path`, in place of an older one."""
    make_folder(path.parent)
    side = path.with_name(f".{path.name}.part")
    shutil.rmtree(side, ignore_errors=True)
    side.mkdir()
    fill(side)
    sync_tree(side)
    if path.exists():
        shutil.rmtree(path)
    publish(side, path)
    return path


def clear_torn(folder: Path) -> None:
    """Remove folders that a killed process was still filling."""
    if folder.is_dir():
        for path in folder.glob(".*.part"):
            shutil.rmtree(path, ignore_errors=True)


def fill_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return the folder, filled now if it does not exist, so that it is whole or absent.

    Two processes may fill it at once; the work of the second is thrown away.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    side = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:12]}")
    side.mkdir()
    try:
        fill(side)
        publish_once(side, folder)
    finally:
        shutil.rmtree(side, ignore_errors=True)
    return folder


def publish_once(side: Path, folder: Path) -> None:
    """Publish a filled folder, unless another process was quicker with the same."""
    try:
        publish(side, folder)
    except OSError:
        if not folder.is_dir():
            raise


def link_or_copy(source: str, target: str) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def require_free(path: Path) -> None:
    """Make sure that nothing is at `path` but perhaps an empty folder.

    Raises:
        CheckpointError: when something is.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(f"{path}: exists already; remove it or choose another folder")
