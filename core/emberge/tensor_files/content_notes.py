"""Notes of the content of weights that were hashed while they were written, and need no reading."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from emberge.tensor_files.content_hash import FileContent

# The longest tick of a clock by which file systems stamp changes.
_TICK = 10_000_000


class ContentNotes:
    """Content of files as they were noted, as long as nothing has changed them.

    A file is known by its number on the disk, its size and its times, so that folders above it may be renamed
    meanwhile.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], FileContent] = {}

    def note(self, path: Path, content: FileContent) -> None:
        """Remember a file's content."""
        status = path.stat()
        if (
            abs(time.time_ns() - status.st_mtime_ns) < _TICK
        ):  # a change within one tick does not show
            time.sleep(_TICK / 1e9)
        self._known[_stamp(status)] = content

    def of(self, path: Path) -> FileContent | None:
        """Return a file's content; None for a file that was not noted or has changed since."""
        return self._known.get(_stamp(path.stat())) if self._known else None


_CURRENT: ContextVar[ContentNotes | None] = ContextVar("content_notes", default=None)


@contextmanager
def noting_contents() -> Iterator[ContentNotes]:
    """Have weights hashed while they are written in this block, and give the notes of their content."""
    notes = ContentNotes()
    token = _CURRENT.set(notes)
    try:
        yield notes
    finally:
        _CURRENT.reset(token)


def current_notes() -> ContentNotes | None:
    """Return the notes of the block that this is called in; None outside of any."""
    return _CURRENT.get()


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)
