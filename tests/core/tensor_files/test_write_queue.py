"""Queued writes are done in order and in bounded memory; direct I/O writes the same bytes."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from emberge.tensor_files.write_queue import (
    BUFFER_COUNT,
    PAGE_BYTES,
    DirectFile,
    FilledBuffer,
    WriteQueue,
)

SIZE = 5 * PAGE_BYTES + 123


def aligned(size: int, place: int) -> memoryview:
    """Return random bytes at the distance from a page's start that `place` has."""
    start = place % PAGE_BYTES
    view = memoryview(mmap.mmap(-1, start + size + 1))[start : start + size]
    view[:] = random.Random(place).randbytes(size)
    return view


def is_direct(handle: int) -> bool:
    return bool(fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT)


class Watched:
    """Calls of pwrite: the direct ones and the others, each as (place, size)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], None]) -> None:
        self.direct: list[tuple[int, int]] = []
        self.cached: list[tuple[int, int]] = []
        real = os.pwrite

        def pwrite(handle: int, data: Any, place: int) -> int:
            direct = is_direct(handle)
            if direct:
                fails(len(self.direct))
            (self.direct if direct else self.cached).append((place, len(data)))
            return real(handle, data, place)

        monkeypatch.setattr(os, "pwrite", pwrite)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[DirectFile]:
    """A file of some pages, full of zeros; a folder on a disk that takes direct writes."""
    found = DirectFile(tmp_path / "f")
    os.ftruncate(found.handle, SIZE)
    yield found
    found.close()


def needs_direct(file: DirectFile) -> None:
    if not file.is_direct:
        pytest.skip("the file system of the temporary folder takes no direct writes")


def content(file: DirectFile) -> bytes:
    return file.read(SIZE + 1, 0)


PIECES = [
    (0, PAGE_BYTES),
    (PAGE_BYTES - 1, 2),
    (PAGE_BYTES - 1, PAGE_BYTES + 2),
    (PAGE_BYTES, 3 * PAGE_BYTES),
    (7, 10),
    (PAGE_BYTES + 8, PAGE_BYTES - 8),
    (3, SIZE - 3),
    (SIZE, 0),
]


@pytest.mark.parametrize(("place", "size"), PIECES)
def test_whole_pages_go_direct_and_the_fragments_at_both_ends_do_not(
    place: int, size: int, file: DirectFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch, lambda _: None)
    data = aligned(size, place)
    file.write_direct(data, place)
    assert content(file) == bytes(place) + bytes(data) + bytes(SIZE - place - size)
    needs_direct(file)
    pages = list(range(-(-place // PAGE_BYTES), (place + size) // PAGE_BYTES))
    written = sorted(
        start // PAGE_BYTES + number
        for start, length in watched.direct
        for number in range(length // PAGE_BYTES)
    )
    assert written == pages
    assert all(start % PAGE_BYTES == length % PAGE_BYTES == 0 for start, length in watched.direct)
    assert sum(length for _, length in watched.cached) == size - PAGE_BYTES * len(pages)
    assert all(length < PAGE_BYTES for _, length in watched.cached)


def test_a_reserved_range_has_zeros_and_keeps_the_files_length(
    file: DirectFile, tmp_path: Path
) -> None:
    file.reserve(PAGE_BYTES, 3 * PAGE_BYTES)
    assert content(file) == bytes(SIZE)
    file.reserve(0, 10 * SIZE)
    assert (tmp_path / "f").stat().st_size == SIZE


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EOPNOTSUPP, "darwin"])
def test_without_direct_io_everything_goes_through_the_cache(
    refusal: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that refuses it, and on other systems."""
    real = os.open

    def opened(path: Any, flags: int, *rest: Any) -> int:
        if isinstance(refusal, int) and flags & os.O_DIRECT:
            raise OSError(refusal, os.strerror(refusal))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", opened)
    if isinstance(refusal, str):
        monkeypatch.setattr(sys, "platform", refusal)
    plain = DirectFile(tmp_path / "g")
    assert not plain.is_direct
    plain.reserve(0, SIZE)
    data = aligned(SIZE, 0)
    plain.write_direct(data, 0)
    assert content(plain) == bytes(data)
    plain.close()


@pytest.mark.parametrize("at", [0, 1])
def test_after_a_refused_direct_write_the_cache_is_used(
    at: int, file: DirectFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_direct(file)

    def refuse(number: int) -> None:
        if number == at:
            raise OSError(errno.EINVAL, "Invalid argument")

    watched = Watched(monkeypatch, refuse)
    data = aligned(SIZE, 0)
    for start, end in (
        (0, 2 * PAGE_BYTES),
        (2 * PAGE_BYTES, 4 * PAGE_BYTES),
        (4 * PAGE_BYTES, SIZE),
    ):
        file.write_direct(data[start:end], start)
    assert content(file) == bytes(data)
    assert not file.is_direct
    assert len(watched.direct) == at, "it is not tried again"


def test_an_error_other_than_a_refusal_is_raised(
    file: DirectFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_direct(file)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Watched(monkeypatch, full)
    with pytest.raises(OSError, match="No space"):
        file.write_direct(aligned(SIZE, 0), 0)
    assert file.is_direct


class Disk:
    """A file in memory that a queue writes to; `gate` holds it up."""

    def __init__(self, queue: WriteQueue) -> None:
        self.queue, self.gate = queue, threading.Event()
        self.gate.set()
        self.content = bytearray(64 * PAGE_BYTES)
        self.log: list[object] = []
        self.sizes: list[int] = []

    def write(self, filled: FilledBuffer) -> None:
        self.gate.wait()
        self.content[filled.position : filled.position + len(filled.data)] = filled.data
        self.log.append(filled.position)
        self.sizes.append(len(filled.data))
        self.queue.release(filled)


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A disk behind a queue of the smallest size, a page a buffer or two."""
    found = Disk(WriteQueue(BUFFER_COUNT * PAGE_BYTES))
    yield found
    found.gate.set()
    found.queue.close()


def test_a_piece_larger_than_a_buffer_is_split(disk: Disk) -> None:
    data = bytes(range(256)) * (40 * PAGE_BYTES // 256)
    disk.queue.put(memoryview(data), 77, disk.write)
    disk.queue.finish()
    assert disk.content[77 : 77 + len(data)] == data
    assert max(disk.sizes) <= 2 * PAGE_BYTES
    assert all(place % PAGE_BYTES == 0 for place in disk.log[1:]), "cut between pages"  # type: ignore[operator]


def test_work_runs_between_the_writes_around_it(disk: Disk) -> None:
    disk.gate.clear()
    for number in range(4):
        disk.queue.put(memoryview(b"x"), number, disk.write)
        disk.queue.run_after_writes(partial(disk.log.append, f"done {number}"))
    disk.gate.set()
    disk.queue.finish()
    assert disk.log == [0, "done 0", 1, "done 1", 2, "done 2", 3, "done 3"]


def test_a_writer_waits_when_all_buffers_are_full(disk: Disk) -> None:
    disk.gate.clear()
    put = []

    def fill() -> None:
        for number in range(BUFFER_COUNT + 3):
            disk.queue.put(memoryview(b"x"), number, disk.write)
            put.append(number)

    worker = threading.Thread(target=fill)
    worker.start()
    worker.join(0.3)
    assert worker.is_alive()
    assert len(put) <= BUFFER_COUNT
    disk.gate.set()
    worker.join()
    disk.queue.finish()
    assert len(disk.log) == BUFFER_COUNT + 3


def test_after_an_error_nothing_is_written_and_every_call_raises_it(disk: Disk) -> None:
    def fail(_: FilledBuffer) -> None:
        raise OSError(28, "No space left on device")

    disk.gate.clear()
    disk.queue.put(memoryview(b"x"), 0, disk.write)
    disk.queue.put(memoryview(b"x"), 1, fail)
    disk.queue.put(memoryview(b"x"), 2, disk.write)
    disk.queue.run_after_writes(lambda: disk.log.append("done"))
    disk.gate.set()
    with pytest.raises(OSError, match="No space"):
        disk.queue.finish()
    for _ in range(2 * BUFFER_COUNT):  # nobody waits for a buffer for ever
        with pytest.raises(OSError, match="No space"):
            disk.queue.put(memoryview(b"x"), 3, disk.write)
    assert disk.log == [0]
