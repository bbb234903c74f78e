"""A watch over renames: what gets its final name is on the disk before, and its name after."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock


@dataclass
class Renames:
    """Renamed files and folders that a power cut could leave without content, or without the name."""

    unsynced: set[str] = field(default_factory=set)
    unnamed: dict[Path, int] = field(default_factory=dict)
    """Inode of the folder, by the name in it."""
    synced: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Time and size of each synced file, by its inode."""

    def note_sync(self, handle: int) -> None:
        """Note that a file or a folder is on the disk now."""
        status = os.fstat(handle)
        self.synced[status.st_ino] = (status.st_mtime_ns, status.st_size)
        self.unnamed = {path: at for path, at in self.unnamed.items() if at != status.st_ino}

    def note_rename(self, source: Path, target: Path) -> None:
        """Note a rename that is about to happen."""
        self.unnamed[target] = target.parent.stat().st_ino
        for path in source.rglob("*") if source.is_dir() else [source]:
            status = path.lstat()
            state = (status.st_mtime_ns, status.st_size)
            if not path.is_symlink() and path.is_file() and self.synced.get(status.st_ino) != state:
                self.unsynced.add(target.name)


@contextmanager
def renames_watched() -> Iterator[Renames]:
    """Watch the renames and the syncs of this process."""
    renames, real = (
        Renames(),
        {name: getattr(os, name) for name in ("fsync", "fdatasync", "replace")},
    )

    def sync(handle: int) -> None:
        real["fsync"](handle)
        renames.note_sync(handle)

    def replace(source: str | Path, target: str | Path) -> None:
        renames.note_rename(Path(source), Path(target))
        real["replace"](source, target)

    with mock.patch.multiple(os, fsync=sync, fdatasync=sync, replace=replace):
        yield renames
