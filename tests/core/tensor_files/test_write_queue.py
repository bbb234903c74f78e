"""What is queued is done in order, by one thread, in bounded memory, and not at all after an error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
from emberge.tensor_files.write_queue import BUFFERS, PAGE, Filled, WriteQueue


class Disk:
    """A file in memory that a queue writes to; `gate` holds it up."""

    def __init__(self, queue: WriteQueue) -> None:
        self.queue, self.gate = queue, threading.Event()
        self.gate.set()
        self.content = bytearray(64 * PAGE)
        self.log: list[object] = []
        self.sizes: list[int] = []

    def write(self, filled: Filled) -> None:
        self.gate.wait()
        self.content[filled.place : filled.place + filled.size] = filled.data
        self.log.append(filled.place)
        self.sizes.append(filled.size)
        self.queue.release(filled)


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A disk behind a queue of the smallest size, a page a buffer or two."""
    found = Disk(WriteQueue(BUFFERS * PAGE))
    yield found
    found.gate.set()
    found.queue.close()


def test_a_piece_larger_than_all_buffers_is_cut(disk: Disk) -> None:
    data = bytes(range(256)) * (40 * PAGE // 256)
    disk.queue.put(memoryview(data), 77, disk.write)
    disk.queue.drain()
    assert disk.content[77 : 77 + len(data)] == data
    assert max(disk.sizes) <= 2 * PAGE
    assert all(place % PAGE == 0 for place in disk.log[1:]), "cut between pages"  # type: ignore[operator]


def test_a_buffer_has_the_bytes_where_the_file_has_them_in_a_page(disk: Disk) -> None:
    places = []

    def write(filled: Filled) -> None:
        start = filled.place % PAGE
        places.append(bytes(filled.buffer[start : start + filled.size]) == bytes(filled.data))
        disk.queue.release(filled)

    for place in (0, 1, PAGE - 1, PAGE, 3 * PAGE + 17):
        disk.queue.put(memoryview(b"some bytes"), place, write)
    disk.queue.drain()
    assert places == [True] * 5


def test_the_caller_may_use_its_memory_again(disk: Disk) -> None:
    disk.gate.clear()
    data = bytearray(b"first")
    disk.queue.put(memoryview(data), 0, disk.write)
    data[:] = b"other"
    disk.queue.put(memoryview(data), 5, disk.write)
    disk.gate.set()
    disk.queue.drain()
    assert disk.content[:10] == b"firstother"


def test_work_is_done_after_the_writes_before_it_and_before_those_after_it(disk: Disk) -> None:
    disk.gate.clear()
    for number in range(4):
        disk.queue.put(memoryview(b"x"), number, disk.write)
        disk.queue.then(partial(disk.log.append, f"done {number}"))
    disk.gate.set()
    disk.queue.drain()
    assert disk.log == [0, "done 0", 1, "done 1", 2, "done 2", 3, "done 3"]


def test_who_is_faster_than_the_disk_waits(disk: Disk) -> None:
    disk.gate.clear()
    put = []

    def fill() -> None:
        for number in range(BUFFERS + 3):
            disk.queue.put(memoryview(b"x"), number, disk.write)
            put.append(number)

    worker = threading.Thread(target=fill)
    worker.start()
    worker.join(0.3)
    assert worker.is_alive()
    assert len(put) <= BUFFERS
    disk.gate.set()
    worker.join()
    disk.queue.drain()
    assert len(disk.log) == BUFFERS + 3


def test_after_an_error_nothing_is_written_and_everybody_is_told(disk: Disk) -> None:
    def fail(_: Filled) -> None:
        raise OSError(28, "No space left on device")

    disk.gate.clear()
    disk.queue.put(memoryview(b"x"), 0, disk.write)
    disk.queue.put(memoryview(b"x"), 1, fail)
    disk.queue.put(memoryview(b"x"), 2, disk.write)
    disk.queue.then(lambda: disk.log.append("done"))
    disk.gate.set()
    with pytest.raises(OSError, match="No space"):
        disk.queue.drain()
    for _ in range(2 * BUFFERS):  # nobody waits for a buffer for ever
        with pytest.raises(OSError, match="No space"):
            disk.queue.put(memoryview(b"x"), 3, disk.write)
    assert disk.log == [0]


def test_an_error_of_other_work_is_one_too(disk: Disk) -> None:
    def fail() -> None:
        raise ValueError("no")

    disk.queue.then(fail)
    disk.queue.then(lambda: disk.log.append("done"))
    with pytest.raises(ValueError, match="no"):
        disk.queue.drain()
    assert disk.log == []


def test_closing_does_what_is_queued(disk: Disk) -> None:
    disk.gate.clear()
    disk.queue.put(memoryview(b"x"), 0, disk.write)
    disk.queue.then(lambda: disk.log.append("done"))
    disk.gate.set()
    disk.queue.close()
    assert disk.log == [0, "done"]
    disk.queue.close()
