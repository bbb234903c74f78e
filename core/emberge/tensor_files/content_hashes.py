"""Hashes of weights while they are written, so that the finished files need not be read.

If pieces are written out of order, early pieces stay in their buffers until their turn, up to a limit.
Importing this module loads no torch.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from emberge.tensor_files.write_queue import BUFFER_COUNT, DirectFile, FilledBuffer

_READ_BYTES = 1 << 20
MOST_EARLY_PIECES = BUFFER_COUNT * 3 // 4
"""Largest number of buffers with early pieces, over all files; the other buffers are for writing."""


@dataclass
class EarlyPieces:
    """A counter of the out-of-order pieces that occupy buffers, over all files of one queue.

    With a separate count for each file, early pieces could occupy all buffers, and nothing could be written.
    """

    count: int = 0


class UnorderedHasher:
    """A hasher of one file, from its header on, whose pieces are written in any order.

    An early piece stays in its buffer. Early pieces beyond the limit, and bytes that were in the file before,
    are read back from the file when their turn comes. For all files with the same `early_pieces`, only one
    thread at a time may make calls.
    """

    def __init__(
        self,
        file: DirectFile,
        opening: bytes,
        release: Callable[[FilledBuffer], None],
        early_pieces: EarlyPieces,
    ) -> None:
        self._file, self._release, self._early_pieces = file, release, early_pieces
        self._hasher = xxhash.xxh3_128(opening)
        self._hashed_bytes = len(opening)
        # Pieces whose turn has not come: sizes by position, and the buffers of those that are still in one.
        self._sizes: dict[int, int] = {}
        self._buffers: dict[int, FilledBuffer] = {}
        self._is_sound = True

    def add_piece(self, piece: FilledBuffer) -> None:
        """Take a written piece; its buffer is released now or later."""
        if piece.position < self._hashed_bytes or piece.position in self._sizes:
            self._give_up()  # it is written again, so its hash is no longer right
        if not self._is_sound:
            self._release(piece)
            return
        self._sizes[piece.position] = len(piece.data)
        self._buffers[piece.position] = piece
        self._early_pieces.count += 1
        self._hash_next_pieces()
        if self._buffers and self._early_pieces.count > MOST_EARLY_PIECES:
            self._release_buffer(max(self._buffers))

    def finish(self, size: int) -> str | None:
        """Return the XXH3 hash of the file of `size` bytes, in hex; None if the file must be read for it."""
        while self._is_sound and self._hashed_bytes < size:
            next_position = min(self._sizes, default=size)
            if next_position < self._hashed_bytes:
                self._give_up()
            self._read_back(next_position - self._hashed_bytes)
            self._hash_next_pieces()
        return str(self._hasher.hexdigest()) if self._is_sound else None

    def _hash_next_pieces(self) -> None:
        """Hash the next pieces, as far as they have been written."""
        while self._is_sound and self._hashed_bytes in self._sizes:
            position = self._hashed_bytes
            size = self._sizes.pop(position)
            if position in self._buffers:
                self._hasher.update(self._buffers[position].data)
                self._hashed_bytes += size
                self._release_buffer(position)
            else:
                self._read_back(size)

    def _read_back(self, size: int) -> None:
        """Read the next bytes back from the file and hash them, or give up if they cannot be read."""
        while self._is_sound and size > 0:
            try:
                piece = self._file.read(min(size, _READ_BYTES), self._hashed_bytes)
            except OSError:
                piece = b""
            if not piece:
                self._give_up()
            self._hasher.update(piece)
            self._hashed_bytes += len(piece)
            size -= len(piece)

    def _give_up(self) -> None:
        self._is_sound = False
        for position in list(self._buffers):
            self._release_buffer(position)

    def _release_buffer(self, position: int) -> None:
        self._early_pieces.count -= 1
        self._release(self._buffers.pop(position))


class HashThread:
    """A thread that hashes pieces while others are written."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[UnorderedHasher, FilledBuffer] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def queue_piece(self, hasher: UnorderedHasher, piece: FilledBuffer) -> None:
        """Queue a piece for a file's hasher."""
        self._work.put((hasher, piece))

    def close(self) -> None:
        """Hash all queued pieces and end the thread."""
        if self._thread.is_alive():
            self._work.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            hasher, piece = work
            hasher.add_piece(piece)
