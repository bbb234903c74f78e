"""Hashes of a result's files, computed from the files or while they are written.

The hashes of weights that are hashed during writing are noted, so that the files need not be read. If pieces
are written out of order, early pieces stay in their buffers until their turn, up to a limit. Importing this
module loads no torch.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from emberge.hashes import hash_file
from emberge.tensor_files.write_queue import BUFFERS, DirectFile, FilledBuffer

_READ_BYTES = 1 << 20
MOST_EARLY_PIECES = BUFFERS * 3 // 4
"""Largest number of buffers with early pieces, over all files; the other buffers are for writing."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """Size and XXH3 hash of a file, 128 bits in hex."""

    size: int
    hash: str

    def plain(self) -> dict[str, Any]:
        """Return the content as JSON values."""
        return {"size": self.size, "xxh3": self.hash}

    @classmethod
    def of_file(cls, path: Path) -> FileContent:
        """Return a file's size and hash, from one reading."""
        return cls(path.stat().st_size, hash_file(path))

    @classmethod
    def of_bytes(cls, content: bytes) -> FileContent:
        """Return the size and the hash of a file's bytes."""
        return cls(len(content), str(xxhash.xxh3_128_hexdigest(content)))

    @classmethod
    def from_plain(cls, plain: Any) -> FileContent | None:
        """Return the content described by JSON values; None if they are malformed."""
        if not isinstance(plain, Mapping) or not isinstance(plain.get("xxh3"), str):
            return None
        return cls(int(plain.get("size", -1)), plain["xxh3"])


def read_contents(
    folder: Path,
    *,
    leave: Sequence[str] = (),
    known: Callable[[Path], FileContent | None] = lambda _: None,
) -> dict[str, FileContent]:
    """Return the content of every file below a folder, by relative path, without hidden files and `leave`.

    A file whose content is `known` is not read.
    """
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    files = {
        name: path
        for name, path in files.items()
        if name not in leave and not any(part.startswith(".") for part in name.split("/"))
    }
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        contents = pool.map(lambda path: known(path) or FileContent.of_file(path), files.values())
        return dict(zip(files, contents, strict=True))


class ContentNotes:
    """Notes of files' contents, valid while the files do not change.

    A file is identified by its inode, size and times, so the folders that contain it may be renamed.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], FileContent] = {}

    def note(self, path: Path, content: FileContent) -> None:
        """Remember a file's content."""
        self._known[_read_stamp(path)] = content

    def of(self, path: Path) -> FileContent | None:
        """Return a file's content; None for a file that was not noted or has changed since."""
        return self._known.get(_read_stamp(path)) if self._known else None


_CURRENT_NOTES: ContextVar[ContentNotes | None] = ContextVar("content_notes", default=None)


@contextmanager
def noting_contents() -> Iterator[ContentNotes]:
    """Hash weights that are written in the `with` block, and yield the notes of their content."""
    notes = ContentNotes()
    token = _CURRENT_NOTES.set(notes)
    try:
        yield notes
    finally:
        _CURRENT_NOTES.reset(token)


def find_current_notes() -> ContentNotes | None:
    """Return the notes of the current block; None outside one."""
    return _CURRENT_NOTES.get()


def _read_stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


@dataclass
class EarlyPieces:
    """A counter of the out-of-order pieces that occupy buffers, over all files of one queue.

    With a separate count for each file, early pieces could occupy all buffers, and nothing could be written.
    """

    count: int = 0


class UnorderedHasher:
    """A hasher of one file, from its header on, whose pieces are written in any order.

    An early piece stays in its buffer. Early pieces beyond the limit, and bytes that were in the file before,
    are read back from the file when their turn comes. For all files with the same `early`, only one thread at
    a time may make calls.
    """

    def __init__(
        self,
        file: DirectFile,
        opening: bytes,
        release: Callable[[FilledBuffer], None],
        early: EarlyPieces,
    ) -> None:
        self._file, self._release, self._counter = file, release, early
        self._hasher = xxhash.xxh3_128(opening)
        self._seen = len(opening)
        # Pieces whose turn has not come: sizes by position, and the buffers of those that are still in one.
        self._sizes: dict[int, int] = {}
        self._buffers: dict[int, FilledBuffer] = {}
        self._sound = True

    def add_piece(self, piece: FilledBuffer) -> None:
        """Take a written piece; its buffer is released now or later."""
        if piece.position < self._seen or piece.position in self._sizes:
            self._give_up()  # it is written again, so its hash is no longer right
        if not self._sound:
            self._release(piece)
            return
        self._sizes[piece.position] = piece.size
        self._buffers[piece.position] = piece
        self._counter.count += 1
        self._hash_known()
        if self._buffers and self._counter.count > MOST_EARLY_PIECES:
            self._release_buffer(max(self._buffers))

    def finish(self, size: int) -> FileContent | None:
        """Return the content of the file of `size` bytes; None if the file must be read for it."""
        while self._sound and self._seen < size:
            next_position = min(self._sizes, default=size)
            if next_position < self._seen:
                self._give_up()
            self._read_back(next_position - self._seen)
            self._hash_known()
        return FileContent(self._seen, str(self._hasher.hexdigest())) if self._sound else None

    def _hash_known(self) -> None:
        """Hash the next pieces, as far as they have been written."""
        while self._sound and self._seen in self._sizes:
            position = self._seen
            size = self._sizes.pop(position)
            if position in self._buffers:
                self._hasher.update(self._buffers[position].data)
                self._seen += size
                self._release_buffer(position)
            else:
                self._read_back(size)

    def _read_back(self, size: int) -> None:
        """Read the next bytes back from the file and hash them, or give up if they cannot be read."""
        while self._sound and size > 0:
            try:
                piece = self._file.read(min(size, _READ_BYTES), self._seen)
            except OSError:
                piece = b""
            if not piece:
                self._give_up()
            self._hasher.update(piece)
            self._seen += len(piece)
            size -= len(piece)

    def _give_up(self) -> None:
        self._sound = False
        for position in list(self._buffers):
            self._release_buffer(position)

    def _release_buffer(self, position: int) -> None:
        self._counter.count -= 1
        self._release(self._buffers.pop(position))


class HashThread:
    """A thread that hashes pieces while others are written."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[UnorderedHasher, FilledBuffer] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def queue_piece(self, file: UnorderedHasher, piece: FilledBuffer) -> None:
        """Queue a piece for a file's hasher."""
        self._work.put((file, piece))

    def close(self) -> None:
        """Hash all queued pieces and end the thread."""
        if self._thread.is_alive():
            self._work.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            file, piece = work
            file.add_piece(piece)
