"""Files and folders that outlive a power cut.

A file's data is on the disk once the file was synced, its name once its folder was. What is renamed into its
place is synced before, or a power cut may leave the name with nothing behind it.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["make_folder", "sync", "sync_files", "sync_tree"]


def sync(path: Path) -> None:
    """Wait until one file's data, or the names in one folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_files(folder: Path) -> None:
    """Wait until the files right in a folder, and all names in it, are on the disk."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.is_symlink():
            sync(path)
    sync(folder)


def sync_tree(folder: Path) -> None:
    """Wait until a folder with all below it is on the disk; its own name is its parent's."""
    for place, _, _ in os.walk(folder, topdown=False):
        sync_files(Path(place))


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, so that their names are on the disk; one that is there is taken."""
    missing = [one for one in (folder, *folder.parents) if not one.is_dir()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync(one.parent)
