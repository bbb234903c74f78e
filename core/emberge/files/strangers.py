"""Safe reading of untrusted files: regular files of bounded size, and no links out of their folder.

A folder from outside may contain a FIFO that never ends a read, a link to a private file, or a file of any
length. All reads from such a folder use this module, which refuses each of these.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import IO, Any

from emberge.errors import UnsoundFileError
from emberge.wording import format_size

_LFS_POINTER_START = b"version https://git-lfs"
JSON_LIMIT = 64 << 20
"""Largest size in bytes of a model's or result's JSON file; the largest known tokenizer.json has 33 MB."""


def open_regular(path: Path, *, limit: int | None = None) -> IO[bytes]:
    """Open a regular file for reading as bytes; links are followed.

    Raises:
        UnsoundFileError: if the path is a FIFO, a device, a socket or a folder, or the file has more than
            `limit` bytes, or is a pointer of Git LFS.
        OSError: if the file is missing or may not be read.
    """
    # Without O_NONBLOCK the opening of a FIFO waits for a writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        require_regular(path, os.fstat(handle), limit=limit)
        if os.pread(handle, len(_LFS_POINTER_START), 0) == _LFS_POINTER_START:
            raise UnsoundFileError(
                f"{path}: a pointer of Git LFS is in the place of the file; run `git lfs pull` where "
                "it comes from, or get the file again"
            )
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def require_regular(path: Path, status: os.stat_result, *, limit: int | None = None) -> None:
    """Require that a path's status is that of a regular file of at most `limit` bytes.

    Raises:
        UnsoundFileError: if it is that of a FIFO, a device, a socket or a folder, or the file is larger.
    """
    if not stat.S_ISREG(status.st_mode):
        raise UnsoundFileError(f"{path}: not a regular file; give a file or a folder of files")
    if limit is not None and status.st_size > limit:
        raise UnsoundFileError(
            f"{path}: has {format_size(status.st_size)}; at most {format_size(limit)} are read here"
        )


def read_regular(path: Path, *, limit: int) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes.

    Raises:
        UnsoundFileError: as `open_regular`; also if the file grows beyond `limit` while it is read.
        OSError: if the file is missing or may not be read.
    """
    with open_regular(path, limit=limit) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UnsoundFileError(f"{path}: at most {format_size(limit)} are read here")
    return content


def read_json(path: Path, *, limit: int = JSON_LIMIT) -> Any:
    """Return the value of a regular JSON file of at most `limit` bytes.

    Raises:
        UnsoundFileError: as `open_regular`.
        ValueError: if the content is not JSON in UTF-8, or is nested too deeply.
        OSError: if the file is missing or may not be read.
    """
    raw = read_regular(path, limit=limit)
    try:
        return json.loads(raw.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def require_inside(path: Path, *roots: Path) -> Path:
    """Return the real path of `path`, all links followed; it must be below one of `roots`.

    Raises:
        UnsoundFileError: if a link leads out of all roots.
    """
    real = Path(os.path.realpath(path))  # unlike resolve(), takes a link to itself
    if not any(real.is_relative_to(root.resolve()) for root in roots):
        raise UnsoundFileError(
            f"{path}: links to {real}, outside of {roots[0]}; put a copy of the file there"
        )
    return real
