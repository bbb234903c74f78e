"""A queue of writes: workers fill buffers, and one thread writes them to the files in order.

As the order is kept, a journal can name a tensor after its bytes are in the file, and the workers need not
wait for syncs. Direct writing (`O_DIRECT`) avoids a copy into the page cache. It needs whole pages, in memory
with the same alignment as in the file: the fragments before and after these pages go through the cache, and
everything does if a file system refuses direct writing.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE_BYTES = mmap.PAGESIZE
QUEUE_BYTES = 32 << 20
"""Largest number of bytes that wait for the disk, unless there is less memory."""
BUFFER_COUNT = 8
"""Number of buffers into which these bytes are divided."""
_REFUSED_ERRORS = (errno.EINVAL, errno.EOPNOTSUPP)
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE, from falloc.h


class DirectFile:
    """An open file, created if missing, written with direct I/O where the file system allows it.

    `is_direct` is False on systems other than Linux, and after the file system has refused a direct call.
    """

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._direct: int | None = None  # a second handle
        if sys.platform == "linux":
            try:
                self._direct = os.open(
                    path, os.O_WRONLY | os.O_DIRECT | os.O_NOFOLLOW | os.O_CLOEXEC
                )
            except OSError as error:
                if error.errno not in _REFUSED_ERRORS:
                    raise

    @property
    def is_direct(self) -> bool:
        """True if whole pages are written with direct I/O."""
        return self._direct is not None

    def reserve(self, position: int, size: int) -> None:
        """Reserve a contiguous range on the disk, if the file system can."""
        allocate = _load_fallocate()
        # A disk too full for it shows, with a clear error, when it is written.
        if self.is_direct and allocate is not None:
            allocate(self.handle, _KEEP_SIZE, position, size)

    def write(self, data: memoryview, position: int) -> None:
        """Write bytes at a position of the file through the page cache."""
        while data:
            done = os.pwrite(self.handle, data, position)
            data, position = data[done:], position + done

    def write_direct(self, data: memoryview, position: int) -> None:
        """Write bytes whose address and `position` have the same offset from the start of a page."""
        first = min(len(data), -position % PAGE_BYTES)
        last = max(first, len(data) - (position + len(data)) % PAGE_BYTES)
        self.write(data[:first], position)
        self._write_pages(data[first:last], position + first)
        self.write(data[last:], position + last)

    def _write_pages(self, pages: memoryview, position: int) -> None:
        """Write whole pages with direct I/O, or through the page cache where it is refused."""
        while pages and self._direct is not None:
            try:
                done = os.pwrite(self._direct, pages, position)
            except OSError as error:
                if error.errno not in _REFUSED_ERRORS:
                    raise
                os.close(self._direct)
                self._direct = None
            else:
                pages, position = pages[done:], position + done
        self.write(pages, position)

    def read(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes from a position on."""
        return os.pread(self.handle, size, position)

    def close(self) -> None:
        """Close the file without a sync."""
        if self._direct is not None:
            os.close(self._direct)
        os.close(self.handle)


@functools.cache
def _load_fallocate() -> Callable[..., Any] | None:
    """Return the C library's fallocate; None without one.

    It is used in place of `os.posix_fallocate`, which writes zeros if the file system cannot reserve space.
    """
    function: Any = (
        getattr(ctypes.CDLL(None), "fallocate", None) if sys.platform == "linux" else None
    )
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class FilledBuffer:
    """A buffer whose bytes `data` belong at `position` in a file, at the same offset from a page's start."""

    buffer: mmap.mmap
    position: int
    data: memoryview


class WriteQueue:
    """Buffers of `size` bytes together, and a thread that writes them.

    After an error nothing more is written, and `put` and `finish` raise the error.
    """

    def __init__(self, size: int = QUEUE_BYTES) -> None:
        # A page more, as a piece begins anywhere in its first one.
        self._capacity = max(1, size // BUFFER_COUNT // PAGE_BYTES - 1) * PAGE_BYTES + PAGE_BYTES
        self._free: queue.SimpleQueue[mmap.mmap | None] = queue.SimpleQueue()
        for _ in range(BUFFER_COUNT):
            self._free.put(None)  # a buffer is allocated when it is first needed
        # Each piece of work, and the buffer that it writes and has released, if any.
        self._work: queue.SimpleQueue[tuple[Callable[[], None], FilledBuffer | None] | None] = (
            queue.SimpleQueue()
        )
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="write", daemon=True)
        self._thread.start()

    def put(self, data: memoryview, position: int, write: Callable[[FilledBuffer], None]) -> None:
        """Queue bytes to be written at a position of a file, by copying them into buffers.

        The queue's thread calls `write` with each buffer; `write` must have the buffer released.
        """
        import numpy as np

        while data:
            buffer = self._free.get()
            if self._error is not None:
                self._free.put(buffer)
                raise self._error
            buffer = buffer or mmap.mmap(-1, self._capacity)
            start = position % PAGE_BYTES
            piece = data[: self._capacity - start]
            filled = FilledBuffer(buffer, position, memoryview(buffer)[start : start + len(piece)])
            # Unlike the assignment of a slice, this lets other threads run.
            np.copyto(np.frombuffer(filled.data, np.uint8), np.frombuffer(piece, np.uint8))
            self._work.put((functools.partial(write, filled), filled))
            data, position = data[len(piece) :], position + len(piece)

    def run_after_writes(self, work: Callable[[], None]) -> None:
        """Run `work` on the queue's thread after everything put before is in the files."""
        self._work.put((work, None))

    def release(self, filled: FilledBuffer) -> None:
        """Return a buffer to the queue, so that it can be filled again."""
        self._free.put(filled.buffer)

    def finish(self) -> None:
        """Wait until everything that was queued is in the files, and end the thread.

        Raises:
            BaseException: the first error that writes or other work raised, if any.
        """
        self.close()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Finish the queued work, unless an error occurred, and end the thread."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        """Do the queued work, until an error; release the buffers of work that failed or was not done."""
        while (queued := self._work.get()) is not None:
            work, filled = queued
            try:
                if self._error is None:
                    work()
            except BaseException as error:
                self._error = error
            if self._error is not None and filled is not None:
                self.release(filled)
