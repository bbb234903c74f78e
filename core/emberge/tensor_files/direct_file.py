"""A file that is written past the page cache: whole pages go straight to the disk.

Buffered writing costs a copy into the cache and, where the kernel must first find new pages, many times that.
Direct writing (`O_DIRECT`) takes whole pages from memory that is aligned like the file. The fragments before
and after them go through the cache, so that each page goes one way only. Where a file system refuses, all
goes through the cache.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = mmap.PAGESIZE

_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE, from falloc.h


class DirectFile:
    """An open file, created if need be, that is written direct where that can be.

    After a call that the file system refuses, and on systems other than Linux, `direct` is False.
    """

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._direct = _open_direct(path)

    @property
    def direct(self) -> bool:
        """True while whole pages go straight to the disk."""
        return self._direct is not None

    def reserve(self, place: int, size: int) -> None:
        """Have the file system set a range aside, in one stretch; where it cannot, do nothing."""
        allocate = _fallocate()
        # A disk too full for it shows, with a clear error, when it is written.
        if self.direct and allocate is not None:
            allocate(self.handle, _KEEP_SIZE, place, size)

    def write(self, data: memoryview, place: int) -> None:
        """Write bytes at `place` through the page cache."""
        while data:
            done = os.pwrite(self.handle, data, place)
            data, place = data[done:], place + done

    def write_direct(self, data: memoryview, place: int) -> None:
        """Write bytes whose address and `place` are at the same distance from a page's start."""
        first = min(len(data), -place % PAGE)
        last = max(first, len(data) - (place + len(data)) % PAGE)
        self.write(data[:first], place)
        self.write(data[self._write_pages(data[first:last], place + first) + first :], place + last)

    def _write_pages(self, pages: memoryview, place: int) -> int:
        """Write whole pages and return the number of bytes, all of them."""
        left = pages
        while left and self._direct is not None:
            try:
                done = os.pwrite(self._direct, left, place)
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                self._close_direct()
            else:
                left, place = left[done:], place + done
        self.write(left, place)
        return len(pages)

    def read(self, size: int, place: int) -> bytes:
        """Return up to `size` bytes from `place` on."""
        return os.pread(self.handle, size, place)

    def sync(self) -> None:
        """Wait until all that was written is on the disk."""
        os.fdatasync(self.handle)

    def close(self) -> None:
        """Close the file as it is."""
        self._close_direct()
        os.close(self.handle)

    def _close_direct(self) -> None:
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None


def _open_direct(path: Path) -> int | None:
    """Return a second handle of a file, for direct writing; None where that cannot be."""
    if sys.platform != "linux":
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return None


@functools.cache
def _fallocate() -> Callable[..., Any] | None:
    """Return the C library's fallocate; None without one.

    `os.posix_fallocate` writes zeros where the file system has no such thing.
    """
    found: Any = getattr(ctypes.CDLL(None), "fallocate", None) if sys.platform == "linux" else None
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found  # type: ignore[no-any-return]
