"""Hashes of a result's files and tensors, computed from the files or while they are written.

The hashes of weights that are hashed during writing are noted, so that the files need not be read. If pieces
are written out of order, early pieces stay in their buffers until their turn, up to a limit. Importing this
module loads no torch.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from emberge.errors import CheckpointError
from emberge.hashes import read_file_pieces
from emberge.tensor_files.safetensors_header import TensorSpec, read_header
from emberge.tensor_files.write_queue import BUFFERS, DirectFile, FilledBuffer

_WEIGHTS = ".safetensors"
# The longest tick of a clock by which file systems stamp changes.
_TICK_NANOSECONDS = 10_000_000
_READ_BYTES = 1 << 20
MOST_EARLY_PIECES = BUFFERS * 3 // 4
"""Largest number of buffers with early pieces, over all files; the other buffers are for writing."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """Size and XXH3 hash of a file (128 bits in hex), and of each tensor in it (64 bits, in hex).

    XXH3 distinguishes contents as fast as they are read; it does not protect against forgery.
    """

    size: int
    hash: str
    tensors: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the content as JSON values."""
        content: dict[str, Any] = {"size": self.size, "xxh3": self.hash}
        return {**content, "tensors": dict(self.tensors)} if self.tensors else content

    @classmethod
    def of_file(cls, path: Path) -> FileContent:
        """Return a file's hash and, for sound weights, its tensors' hashes, from one reading."""
        hasher = ContentHasher(_read_specs(path))
        for piece in read_file_pieces(path):
            hasher.update(piece)
        return hasher.content()

    @classmethod
    def of_bytes(cls, content: bytes) -> FileContent:
        """Return the size and the hash of a file's bytes."""
        hasher = ContentHasher(())
        hasher.update(memoryview(content))
        return hasher.content()

    @classmethod
    def from_plain(cls, plain: Any) -> FileContent | None:
        """Return the content described by JSON values; None if they are malformed."""
        if not isinstance(plain, Mapping):
            return None
        tensors = plain.get("tensors", {})
        if not isinstance(plain.get("xxh3"), str) or not isinstance(tensors, Mapping):
            return None
        return cls(int(plain.get("size", -1)), plain["xxh3"], tensors)


def contents_of(
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


class ContentHasher:
    """A hasher of a file and its tensors, fed with the file's bytes in order.

    `specs` are the tensors with their offsets in the file.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self.seen = 0
        self._whole = xxhash.xxh3_128()
        self._left = sorted(specs, key=lambda spec: spec.offset, reverse=True)
        self._tensors: dict[str, Any] = {spec.name: xxhash.xxh3_64() for spec in specs}

    def update(self, piece: memoryview) -> None:
        """Hash the bytes that follow those already `seen`."""
        offset, end = self.seen, self.seen + len(piece)
        self.seen = end
        self._whole.update(piece)
        while self._left and self._left[-1].offset < end:
            spec = self._left[-1]
            last = spec.offset + spec.nbytes
            start = max(spec.offset, offset)
            self._tensors[spec.name].update(piece[start - offset : min(last, end) - offset])
            if last > end:
                return
            self._left.pop()

    def content(self) -> FileContent:
        """Return the content, once all bytes of the file were hashed."""
        tensors = {name: str(hasher.hexdigest()) for name, hasher in self._tensors.items()}
        return FileContent(self.seen, str(self._whole.hexdigest()), tensors)


def _read_specs(path: Path) -> list[TensorSpec]:
    if path.suffix != _WEIGHTS:
        return []
    try:
        return list(read_header(path)[0].values())
    except CheckpointError:
        return []  # the reader of the header names the problem


class ContentNotes:
    """Notes of files' contents, valid while the files do not change.

    A file is identified by its inode, size and times, so the folders that contain it may be renamed.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], FileContent] = {}

    def note(self, path: Path, content: FileContent) -> None:
        """Remember a file's content."""
        status = path.stat()
        if (
            abs(time.time_ns() - status.st_mtime_ns) < _TICK_NANOSECONDS
        ):  # a change within one tick does not show
            time.sleep(_TICK_NANOSECONDS / 1e9)
        self._known[_read_stamp(status)] = content

    def of(self, path: Path) -> FileContent | None:
        """Return a file's content; None for a file that was not noted or has changed since."""
        return self._known.get(_read_stamp(path.stat())) if self._known else None


_CURRENT: ContextVar[ContentNotes | None] = ContextVar("content_notes", default=None)


@contextmanager
def noting_contents() -> Iterator[ContentNotes]:
    """Hash weights that are written in the `with` block, and yield the notes of their content."""
    notes = ContentNotes()
    token = _CURRENT.set(notes)
    try:
        yield notes
    finally:
        _CURRENT.reset(token)


def current_notes() -> ContentNotes | None:
    """Return the notes of the current block; None outside one."""
    return _CURRENT.get()


def _read_stamp(status: os.stat_result) -> tuple[int, ...]:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


@dataclass
class EarlyPieces:
    """A counter of the out-of-order pieces that occupy buffers, over all files of one queue.

    With a separate count for each file, early pieces could occupy all buffers, and nothing could be written.
    """

    count: int = 0


class UnorderedHasher:
    """A hasher of one file whose pieces are written in any order.

    An early piece stays in its buffer. Early pieces beyond the limit, and bytes that were in the file before,
    are read back from the file when their turn comes. For all files with the same `early`, only one thread at
    a time may make calls.
    """

    def __init__(
        self,
        file: DirectFile,
        opening: bytes,
        specs: Sequence[TensorSpec],
        release: Callable[[FilledBuffer], None],
        early: EarlyPieces,
    ) -> None:
        self._file, self._release, self._counter = file, release, early
        self._hasher = ContentHasher(specs)
        self._hasher.update(memoryview(opening))
        self._early: dict[int, FilledBuffer] = {}
        self._dropped: dict[int, int] = {}
        self._sound = True

    def add_piece(self, piece: FilledBuffer) -> None:
        """Take a written piece; its buffer is released now or later."""
        if piece.place < self._hasher.seen or piece.place in self._early:
            self._give_up()  # it is written again, so its hash is no longer right
        if not self._sound:
            self._release(piece)
            return
        self._early[piece.place] = piece
        self._counter.count += 1
        self._hash_known()
        if self._early and self._counter.count > MOST_EARLY_PIECES:
            last = self._take_early(max(self._early))
            self._dropped[last.place] = last.size
            self._release(last)

    def finish(self, size: int) -> FileContent | None:
        """Return the content of the file of `size` bytes; None if the file must be read for it."""
        while self._sound and self._hasher.seen < size:
            next_place = min((*self._early, *self._dropped), default=size)
            if next_place < self._hasher.seen:
                self._give_up()
            self._read_back(next_place - self._hasher.seen)
            self._hash_known()
        return self._hasher.content() if self._sound else None

    def _hash_known(self) -> None:
        """Hash the next pieces, as far as they have been written."""
        while self._sound:
            offset = self._hasher.seen
            if offset in self._early:
                piece = self._take_early(offset)
                self._hasher.update(piece.data)
                self._release(piece)
            elif offset in self._dropped:
                self._read_back(self._dropped.pop(offset))
            else:
                return

    def _read_back(self, size: int) -> None:
        """Read the next bytes back from the file and hash them, or give up if they cannot be read."""
        while self._sound and size > 0:
            try:
                piece = self._file.read(min(size, _READ_BYTES), self._hasher.seen)
            except OSError:
                piece = b""
            if not piece:
                self._give_up()
            self._hasher.update(memoryview(piece))
            size -= len(piece)

    def _give_up(self) -> None:
        self._sound = False
        for offset in list(self._early):
            self._release(self._take_early(offset))

    def _take_early(self, place: int) -> FilledBuffer:
        """Remove an early piece and return it."""
        self._counter.count -= 1
        return self._early.pop(place)


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
