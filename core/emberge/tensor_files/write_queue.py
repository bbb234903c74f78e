"""A queue of writes: workers fill buffers, one thread puts them into the files in the order given.

What is queued after a write is done after it: that is how a journal names a tensor only when its bytes are in
the file, and how syncing costs no worker its time.
"""

from __future__ import annotations

import functools
import mmap
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from emberge.tensor_files.direct_file import PAGE

QUEUE = 32 << 20
"""Bytes that may wait for the disk, unless there is less memory."""

BUFFERS = 8
"""Buffers that these bytes are divided into."""


class WriteQueue:
    """Buffers of `size` bytes together, and a thread that writes them.

    After an error nothing is written any more, and `put` and `drain` raise it.
    """

    def __init__(self, size: int = QUEUE) -> None:
        # A page more, as a piece begins anywhere in its first one.
        self._capacity = max(1, size // BUFFERS // PAGE - 1) * PAGE + PAGE
        self._free: queue.SimpleQueue[mmap.mmap | None] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(None)  # a buffer is allocated when it is first needed
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="write", daemon=True)
        self._thread.start()

    def put(self, data: memoryview, place: int, write: Callable[[Filled], None]) -> None:
        """Copy bytes for `place` of a file into buffers.

        `write` gets each of them in its turn, and sees to it that it is released.
        """
        import numpy as np

        while data:
            some = data[: self._capacity - place % PAGE]
            filled = Filled(self._buffer(), place, len(some))
            # Unlike the assignment of a slice, this lets other threads run.
            np.copyto(np.frombuffer(filled.data, np.uint8), np.frombuffer(some, np.uint8))
            self._work.put(functools.partial(self._write, filled, write))
            data, place = data[len(some) :], place + len(some)

    def then(self, work: Callable[[], None]) -> None:
        """Do some work on the queue's thread, once all that was put before is in the files."""
        self._work.put(functools.partial(self._guard, work))

    def release(self, filled: Filled) -> None:
        """Take back a buffer that nobody needs any more."""
        self._free.put(filled.buffer)

    def drain(self) -> None:
        """Wait until all that was put is in the files.

        Raises:
            BaseException: the first that a write, or other work, has raised.
        """
        done = threading.Event()
        self._work.put(done.set)
        done.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Do all that is queued, unless an error forbids it, and end the thread."""
        if self._thread.is_alive():
            self._work.put(None)
            self._thread.join()

    def _buffer(self) -> mmap.mmap:
        buffer = self._free.get()
        if self._error is not None:
            self._free.put(buffer)
            raise self._error
        return buffer or mmap.mmap(-1, self._capacity)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _write(self, filled: Filled, write: Callable[[Filled], None]) -> None:
        self._guard(functools.partial(write, filled))
        if self._error is not None:
            self.release(filled)

    def _guard(self, work: Callable[[], None]) -> None:
        """Do some work unless an error came before it, and keep its own."""
        if self._error is None:
            try:
                work()
            except BaseException as error:
                self._error = error


@dataclass(frozen=True, slots=True)
class Filled:
    """A buffer with bytes for `place` of a file, at the distance from a page's start that they have there."""

    buffer: mmap.mmap
    place: int
    size: int

    @property
    def data(self) -> memoryview:
        """The bytes."""
        start = self.place % PAGE
        return memoryview(self.buffer)[start : start + self.size]
