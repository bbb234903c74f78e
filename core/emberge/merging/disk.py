"""What a disk refuses, said in one line that names the place and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emberge.errors import CheckpointError

__all__ = ["UnwrittenError", "fsync_folder", "unwritten", "writing"]

_AGAIN = "run again: what is done is kept"
_ADVICE = {
    errno.ENOSPC: f"make room and {_AGAIN}",
    errno.EDQUOT: f"make room and {_AGAIN}",
    errno.EFBIG: f"files may not be as large here (`ulimit -f`); allow larger ones and {_AGAIN}",
    errno.EACCES: "choose another place",
    errno.EPERM: "choose another place",
    errno.EROFS: "choose another place",
}


class UnwrittenError(CheckpointError):
    """The disk did not take what was to be written; the inputs may be as they should."""

    exit_code = 1


def unwritten(place: Path, what: str, error: OSError) -> UnwrittenError:
    """The error to raise when `what` could not be written into `place`."""
    advice = _ADVICE.get(error.errno or 0, f"see to the disk and {_AGAIN}")
    return UnwrittenError(f"{place}: {what} could not be written ({error.strerror}); {advice}")


@contextmanager
def writing(place: Path, what: str) -> Iterator[None]:
    """Turn what the operating system refuses while `what` is written into an error that says what to do.

    Raises:
        UnwrittenError: for a full disk, a limit, missing rights, or a broken disk.
    """
    try:
        yield
    except OSError as error:
        raise unwritten(place, what, error) from error


def fsync_folder(folder: Path, *, skipped: str = "") -> None:
    """Have all files and folders under `folder` on the disk, except files with the ending `skipped`."""
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            if not skipped or not name.endswith(skipped):
                sync(Path(place, name))
        sync(Path(place))


def sync(path: Path) -> None:
    """Have one file, or the list of a folder's entries, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
