"""Fetching of single tensors from files on servers, in blocks and several at once.

Fetched bytes are kept in a file without a name, which disappears with the process. So a tensor that a method
reads several times is fetched once, and no other program can mistake a file with gaps for a whole file.
"""

from __future__ import annotations

import bisect
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from emberge.files import require_space, writing
from emberge.tensor_files.remote_file import RemoteFile
from emberge.tensor_files.safetensors_header import TensorSpec
from emberge.tensor_files.server_file import ServerFile, wrong_hash_error

_BLOCK = 4 << 20
_AT_ONCE = 8


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
        self._pool = ThreadPoolExecutor(_AT_ONCE, "fetch")
        self._copies: dict[Path, _SparseCopy] = {}
        self._lock = threading.Lock()

    def expect(self, works: Iterable[Sequence[TensorSpec]]) -> None:
        """Begin to fetch the tensors that pieces of work will read, one piece after the other.

        Raises:
            EmbergeError: if the disk has no room for them.
        """
        ranges_by_file: dict[Path, dict[int, tuple[int, int]]] = {}
        for work, specs in enumerate(works):
            for spec in specs:
                end = spec.offset + spec.nbytes
                ranges_by_file.setdefault(spec.file, {}).setdefault(spec.offset, (end, work))
        blocks = [
            (work, number, file, start, end)
            for file, ranges in ranges_by_file.items()
            for work, number, start, end in _plan_blocks(ranges)
        ]
        if blocks:
            require_space(blocks[0][2].parent, sum(end - start for *_, start, end in blocks))
        for *_, file, start, end in sorted(blocks):
            self._open_copy(file).expect(start, end)

    def open_fetched(self, spec: TensorSpec, start: int, end: int) -> int:
        """Return the handle of an open file that has the bytes `start` to `end` of the spec's file.

        Raises:
            CheckpointError: if they cannot be fetched.
        """
        copy = self._open_copy(spec.file)
        copy.wait_for(spec, start, end)
        return copy.handle

    def verify(self) -> list[FetchedFile]:
        """Compare every file that was read with its server's version and hash, and return the records.

        Raises:
            CheckpointError: if a file has changed since it was read, or its content has another hash.
        """
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

    def _open_copy(self, note: Path) -> _SparseCopy:
        copy = self._copies.get(note)
        if copy is None:
            with self._lock:
                copy = self._copies.get(note)
                if copy is None:
                    copy = self._copies[note] = _SparseCopy(note, self._pool, self._stop)
        return copy


class _SparseCopy:
    """A sparse copy of a file on a server, with the requested parts only."""

    def __init__(self, note: Path, pool: ThreadPoolExecutor, stop: threading.Event) -> None:
        remote = RemoteFile.read(note)
        self._server = ServerFile(remote.url, remote.size, remote.version, remote.sha256, stop)
        self._place, self._pool = note.parent, pool
        self._lock = threading.Lock()
        with writing(self._place, "what is read from a server"):
            self._file = tempfile.TemporaryFile(dir=self._place)  # noqa: SIM115
            self.handle = self._file.fileno()
            os.ftruncate(self.handle, remote.size)
            os.pwrite(self.handle, remote.header, 0)
        # Sorted and apart: first byte, end, and the fetching of it.
        self._stretches: list[tuple[int, int, Future[None]]] = []
        self._header = len(remote.header)

    def expect(self, start: int, end: int) -> None:
        """Begin to fetch the missing parts of a range of bytes."""
        with self._lock:
            for first, last in self._find_missing_parts(start, end):
                for at, stop in _cut_range(first, last):
                    future = self._pool.submit(self._fetch, at, stop)
                    bisect.insort(self._stretches, (at, stop, future), key=lambda one: one[0])

    def wait_for(self, spec: TensorSpec, start: int, end: int) -> None:
        """Wait until a part of a tensor is fetched; fetch the whole tensor if it was not announced."""
        with self._lock:
            missing = bool(self._find_missing_parts(start, end))
        if missing:
            self.expect(spec.offset, spec.offset + spec.nbytes)
        with self._lock:
            waiting = [future for *_, future in self._find_overlapping_parts(start, end)]
        for future in waiting:
            future.result()

    def verify(self) -> FetchedFile:
        """Compare the version and, if the whole file was fetched, the hash with the server's."""
        server = self._server
        server.require_unchanged()
        fetched = sum(end - start for start, end, _ in self._stretches)
        whole = self._header + fetched == server.size
        if whole and server.sha256 is not None:
            digest = self._hash_copy()
            if digest != server.sha256:
                raise wrong_hash_error(server, digest)
        checked = "sha256" if whole and server.sha256 is not None else ""
        return FetchedFile(server.url, server.size, fetched + self._header, checked)

    def close(self) -> None:
        """Remove the copy."""
        self._file.close()

    def _hash_copy(self) -> str:
        self._file.seek(0)
        return hashlib.file_digest(self._file, "sha256").hexdigest()

    def _fetch(self, start: int, end: int) -> None:
        content = self._server.read(start, end)
        with writing(self._place, "what is read from a server"):
            while content:
                done = os.pwrite(self.handle, content, start)
                content, start = content[done:], start + done

    def _find_overlapping_parts(self, start: int, end: int) -> list[tuple[int, int, Future[None]]]:
        after = bisect.bisect_left(self._stretches, end, key=lambda one: one[0])
        before = bisect.bisect_right(self._stretches, start, key=lambda one: one[0])
        return [s for s in self._stretches[max(0, before - 1) : after] if s[1] > start]

    def _find_missing_parts(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range of bytes that no thread fetches yet."""
        missing: list[tuple[int, int]] = []
        for first, last, _ in self._find_overlapping_parts(start, end):
            if start < first:
                missing.append((start, first))
            start = max(start, last)
        if start < end:
            missing.append((start, end))
        return missing


def _plan_blocks(ranges: dict[int, tuple[int, int]]) -> Iterator[tuple[int, int, int, int]]:
    """Yield a file's ranges as blocks: (index of the piece of work, number within it, first byte, end).

    `ranges` maps a range's first byte to its end and the index of its piece of work. Consecutive small ranges
    share a block, which has the smallest of their indices.
    """
    begin, reach, first = 0, 0, 0
    for start, (end, work) in [*sorted(ranges.items()), (-1, (-1, 0))]:
        if start == reach and end - begin <= _BLOCK:
            reach, first = end, min(first, work)
            continue
        yield from ((first, number, *cut) for number, cut in enumerate(_cut_range(begin, reach)))
        begin, reach, first = start, end, work


def _cut_range(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the blocks of a range of bytes."""
    for at in range(start, end, _BLOCK):
        yield at, min(end, at + _BLOCK)
