"""Fetching of tensors from files on servers, in blocks and several at once.

Fetched bytes are kept in a file without a name, which disappears with the process. So a tensor that a method
reads several times is fetched once, and no other program can mistake a file with gaps for a whole file.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from emberge.files import require_space, writing
from emberge.tensor_files.safetensors_header import RemoteFile, TensorSpec
from emberge.tensor_files.server_file import ServerFile

_BLOCK_BYTES = 4 << 20
_BLOCKS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A record of a file read from a server: its size, and the bytes fetched.

    `checked` names the hash with which its content was compared: "" if the server provides none, or if only a
    part of the file was fetched.
    """

    url: str
    size: int
    fetched: int
    checked: str


class TensorFetcher:
    """The tensors of files on servers, fetched ahead in the order announced; threads may share it."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(_BLOCKS_AT_ONCE, "fetch")
        self._copies: dict[Path, _SparseCopy] = {}
        self._lock = threading.Lock()

    def expect(self, works: Iterable[Sequence[TensorSpec]]) -> None:
        """Begin to fetch the tensors that pieces of work will read, one piece after the other."""
        # The turn of each block: the piece of work that first needs it, and its number within a tensor.
        turns: dict[tuple[Path, int], tuple[int, int]] = {}
        for work, specs in enumerate(works):
            for spec in specs:
                for number, block in enumerate(_list_blocks(spec)):
                    turns.setdefault((spec.file, block), (work, number))
        if turns:
            require_space(next(iter(turns))[0].parent, len(turns) * _BLOCK_BYTES)
        for file, block in sorted(turns, key=lambda key: turns[key]):
            self._open_copy(file).expect(block)

    def open_fetched(self, spec: TensorSpec, start: int, end: int) -> int:
        """Return the handle of an open file that has the bytes `start` to `end` of the spec's file."""
        copy = self._open_copy(spec.file)
        copy.wait_for(spec, start, end)
        return copy.handle

    def verify(self) -> list[FetchedFile]:
        """Compare every file that was read with its server's version and hash, and return the records."""
        return list(self._pool.map(_SparseCopy.verify, list(self._copies.values())))

    def end_requests(self) -> None:
        """End all requests; threads waiting for one get an error."""
        self._stop.set()

    def close(self) -> None:
        """End all requests, and remove the fetched bytes."""
        self.end_requests()
        self._pool.shutdown(cancel_futures=True)
        for copy in self._copies.values():
            copy.close()
        self._copies.clear()

    def _open_copy(self, note_path: Path) -> _SparseCopy:
        with self._lock:
            if note_path not in self._copies:
                self._copies[note_path] = _SparseCopy(note_path, self._pool, self._stop)
            return self._copies[note_path]


class _SparseCopy:
    """A sparse copy of a file on a server, with the requested blocks only."""

    def __init__(self, note_path: Path, pool: ThreadPoolExecutor, stop: threading.Event) -> None:
        remote = RemoteFile.read(note_path)
        self._server = ServerFile(remote.url, remote.size, remote.version, remote.sha256, stop)
        self._folder, self._pool = note_path.parent, pool
        self._lock = threading.Lock()
        self._fetches: dict[int, Future[int]] = {}
        with writing(self._folder, "what is read from a server"):
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            self.handle = self._file.fileno()
            os.ftruncate(self.handle, remote.size)
            os.pwrite(self.handle, remote.header, 0)
        for block in range(len(remote.header) // _BLOCK_BYTES):  # these are there already
            self._fetches[block] = Future()
            self._fetches[block].set_result(_BLOCK_BYTES)

    def expect(self, block: int) -> Future[int]:
        """Begin to fetch a block unless it was begun before, and return the future of its size."""
        with self._lock:
            if block not in self._fetches:
                self._fetches[block] = self._pool.submit(self._fetch, block)
            return self._fetches[block]

    def wait_for(self, spec: TensorSpec, start: int, end: int) -> None:
        """Wait until a part of a tensor is fetched; fetch the whole tensor if it was not announced."""
        needed = range(start // _BLOCK_BYTES, -(-end // _BLOCK_BYTES))
        if any(block not in self._fetches for block in needed):
            for block in _list_blocks(spec):
                self.expect(block)
        for block in needed:
            self._fetches[block].result()

    def verify(self) -> FetchedFile:
        """Compare the version and, if the whole file was fetched, the hash with the server's."""
        self._server.require_unchanged()
        fetched = sum(fetch.result() for fetch in self._fetches.values())
        is_hashed = fetched == self._server.size and self._server.sha256 is not None
        if is_hashed:
            self._file.seek(0)
            self._server.require_hash(hashlib.file_digest(self._file, "sha256").hexdigest())
        checked = "sha256" if is_hashed else ""
        return FetchedFile(self._server.url, self._server.size, fetched, checked)

    def close(self) -> None:
        """Remove the copy."""
        self._file.close()

    def _fetch(self, block: int) -> int:
        """Write a block into the copy, and return its number of bytes."""
        start = block * _BLOCK_BYTES
        content = self._server.read(start, min(start + _BLOCK_BYTES, self._server.size))
        with writing(self._folder, "what is read from a server"):
            done = 0
            while done < len(content):
                done += os.pwrite(self.handle, content[done:], start + done)
        return done


def _list_blocks(spec: TensorSpec) -> range:
    """Return the numbers of the blocks of a file that contain a tensor's bytes."""
    return range(spec.offset // _BLOCK_BYTES, -(-(spec.offset + spec.nbytes) // _BLOCK_BYTES))
