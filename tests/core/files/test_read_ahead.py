"""What is announced is fetched, and announcing changes nothing that is read."""

from __future__ import annotations

import errno
import mmap
import os
import time
from pathlib import Path

import pytest
from emberge.files import announce, read_ahead

SIZE = 4 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of which nothing is in memory, if the file system gives back what it is asked to."""
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(SIZE))
    handle = os.open(path, os.O_RDWR)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)
    return path


def in_memory(handle: int, place: int) -> bool:
    try:
        return os.preadv(handle, [bytearray(1)], place, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("this file system keeps files in memory, or does not tell")


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="needs Linux")
def test_what_is_announced_comes_into_memory_by_itself(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        places = range(1 << 20, 3 << 20, mmap.PAGESIZE)
        if any(in_memory(handle, place) for place in places):
            pytest.skip("this file system keeps files in memory")
        announce(handle, places.start, places.stop)
        until = time.monotonic() + 30
        while not all(in_memory(handle, place) for place in places):
            assert time.monotonic() < until, "it was announced and never came"
            time.sleep(0.01)
    finally:
        os.close(handle)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 0), (0, SIZE), (SIZE - 1, 3 * SIZE), (9 * SIZE, 10 * SIZE)]
)
def test_a_stretch_may_be_empty_or_beyond_the_end(file: Path, start: int, end: int) -> None:
    content = file.read_bytes()
    handle = os.open(file, os.O_RDONLY)
    try:
        announce(handle, start, end)
    finally:
        os.close(handle)
    assert file.read_bytes() == content


@pytest.mark.parametrize("nowait", [None, 1 << 30])
def test_a_system_that_cannot_tell_is_left_alone(
    file: Path, monkeypatch: pytest.MonkeyPatch, nowait: int | None
) -> None:
    monkeypatch.setattr(read_ahead, "_NOWAIT", nowait)
    monkeypatch.delattr(os, "posix_fadvise")
    content = file.read_bytes()
    handle = os.open(file, os.O_RDONLY)
    try:
        announce(handle, 0, SIZE)
    finally:
        os.close(handle)
    assert file.read_bytes() == content
