"""The disk: syncs, free space, reading ahead, and errors of writing with a remedy.

A file's data is safe on the disk after the file is synced, and its name after its folder is synced.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emberge.errors import UnwrittenError
from emberge.wording import format_size

_RUN_AGAIN = "run again: what is done is kept"
_ADVICE = {
    errno.ENOSPC: f"make room and {_RUN_AGAIN}",
    errno.EDQUOT: f"make room and {_RUN_AGAIN}",
    errno.EFBIG: f"files may not grow so large here (`ulimit -f`); allow larger ones and {_RUN_AGAIN}",
    errno.EACCES: "choose another place",
    errno.EPERM: "choose another place",
    errno.EROFS: "choose another place",
}
# The kernel takes no more of one announcement than it would read ahead by itself, or than the disk moves at
# once: this much nearly everywhere.
_ADVISED_BYTES = 256 << 10
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)


def find_user_cache() -> Path | None:
    """Return our folder of caches on the user's disk, which may not exist; None for a user without a home."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return cache / "emberge" if cache.is_absolute() else None


def sync(path: Path) -> None:
    """Sync a file's data, or a folder's list of entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path, *, deep: bool = True) -> None:
    """Sync a folder's whole content to the disk, except its own name, which its parent stores.

    Without `deep`, the content of subfolders is left out.
    """
    for directory, _, files in os.walk(folder, topdown=False) if deep else [next(os.walk(folder))]:
        for path in [Path(directory, name) for name in sorted(files)]:
            if path.is_file() and not path.is_symlink():
                sync(path)
        sync(Path(directory))


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and sync them to the disk; an existing folder is kept."""
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync(path.parent)


def announce(handle: int, start: int, end: int) -> None:
    """Ask the kernel to read a range of an open file ahead, unless it is in memory already.

    If several threads read several files, the kernel's automatic read-ahead fails: files that are not in the
    cache are then read at a half or a third of the disk's speed, and with more processor time.
    """
    if _NOWAIT is None or end <= start:
        return
    try:
        os.preadv(handle, [bytearray(1)], end - 1, _NOWAIT)
    except BlockingIOError:
        for offset in range(start, end, _ADVISED_BYTES):
            length = min(_ADVISED_BYTES, end - offset)
            os.posix_fadvise(handle, offset, length, os.POSIX_FADV_WILLNEED)
    except OSError:
        return  # a file system that cannot tell


@contextmanager
def writing(path: Path, content: str) -> Iterator[None]:
    """Turn an OSError of the `with` block into an UnwrittenError: `content` could not be written at `path`.

    Raises:
        UnwrittenError: if the disk is full or broken, a limit is reached, or rights are missing.
    """
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, f"see to the disk and {_RUN_AGAIN}")
        raise UnwrittenError(
            f"{path}: {content} could not be written ({error.strerror}); {advice}"
        ) from error


def require_space(folder: Path, size: int, begun: Path | None = None) -> None:
    """Require `size` free bytes on the disk of `folder`, which need not exist yet.

    The bytes of weights that a killed process has already written into the folder `begun` are counted as
    free.

    Raises:
        UnwrittenError: if less is free; the message has the needed and the free space.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if begun is not None:
        free += sum(512 * path.stat().st_blocks for path in begun.rglob("*.safetensors"))
    if size > free:
        raise UnwrittenError(
            f"{folder}: needs {format_size(size)} of disk, and {format_size(free)} are free; "
            "make room or choose another place"
        )
