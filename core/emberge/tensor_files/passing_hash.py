"""Hashes of files from the pieces on their way out, so that nothing is read again at the end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emberge.tensor_files.content_hash import ContentHasher, FileContent
from emberge.tensor_files.direct_file import DirectFile
from emberge.tensor_files.safetensors_header import TensorSpec
from emberge.tensor_files.write_queue import BUFFERS, Filled

_READ = 1 << 20
HELD = BUFFERS * 3 // 4
"""Early pieces of all files together that keep their buffers; the other buffers are for writing."""


@dataclass
class EarlyPieces:
    """Count of the pieces that keep their buffers, over all files that are written from one queue.

    If files counted by themselves, they could hold all buffers, and none could be written any more.
    """

    held: int = 0


class PassingHash:
    """The hashes of one file, in the order of its bytes.

    A piece that comes early waits in its buffer; one that is dropped, and all that was there before, is read
    back in its turn. All calls come from one thread at a time, for all files with the same `early`.
    """

    def __init__(
        self,
        file: DirectFile,
        opening: bytes,
        specs: Sequence[TensorSpec],
        release: Callable[[Filled], None],
        early: EarlyPieces,
    ) -> None:
        self._file, self._release, self._count = file, release, early
        self._hasher = ContentHasher(specs)
        self._hasher.see(memoryview(opening))
        self._early: dict[int, Filled] = {}
        self._dropped: dict[int, int] = {}
        self._sound = True

    def see(self, piece: Filled) -> None:
        """Take a piece that is in the file; its buffer is released here or later."""
        if piece.place < self._hasher.seen or piece.place in self._early:
            self._give_up()  # it is written anew, and what was hashed is no more
        if not self._sound:
            self._release(piece)
            return
        self._early[piece.place] = piece
        self._count.held += 1
        self._go_on()
        if self._early and self._count.held > HELD:
            last = self._take(max(self._early))
            self._dropped[last.place] = last.size
            self._release(last)

    def finish(self, size: int) -> FileContent | None:
        """Return the content of the file of `size` bytes; None when only reading it can give that."""
        while self._sound and self._hasher.seen < size:
            following = min((*self._early, *self._dropped), default=size)
            if following < self._hasher.seen:
                self._give_up()
            self._read_back(following - self._hasher.seen)
            self._go_on()
        return self._hasher.content() if self._sound else None

    def _go_on(self) -> None:
        """Hash the pieces that follow, as far as they are known."""
        while self._sound:
            place = self._hasher.seen
            if place in self._early:
                piece = self._take(place)
                self._hasher.see(piece.data)
                self._release(piece)
            elif place in self._dropped:
                self._read_back(self._dropped.pop(place))
            else:
                return

    def _read_back(self, size: int) -> None:
        """Hash the bytes that follow from the file, or give up where they cannot be read."""
        while self._sound and size > 0:
            try:
                some = self._file.read(min(size, _READ), self._hasher.seen)
            except OSError:
                some = b""
            if not some:
                self._give_up()
            self._hasher.see(memoryview(some))
            size -= len(some)

    def _give_up(self) -> None:
        self._sound = False
        for place in list(self._early):
            self._release(self._take(place))

    def _take(self, place: int) -> Filled:
        """Return an early piece, which is none any more."""
        self._count.held -= 1
        return self._early.pop(place)


class HashThread:
    """A thread that hashes pieces while others are written."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[PassingHash, Filled] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def see(self, file: PassingHash, piece: Filled) -> None:
        """Have a file's hash take a piece."""
        self._work.put((file, piece))

    def close(self) -> None:
        """Take all pieces and end the thread."""
        if self._thread.is_alive():
            self._work.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            file, piece = work
            file.see(piece)
