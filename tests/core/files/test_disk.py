"""Announced ranges are read ahead without changing what is read; too little space is a problem."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from emberge import EmbergeError
from emberge.files import announce, disk, require_space

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
def test_an_announced_range_is_read_into_memory(file: Path) -> None:
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
def test_an_announced_range_may_be_empty_or_beyond_the_end(
    file: Path, start: int, end: int
) -> None:
    content = file.read_bytes()
    handle = os.open(file, os.O_RDONLY)
    try:
        announce(handle, start, end)
    finally:
        os.close(handle)
    assert file.read_bytes() == content


def test_an_unsupported_announcement_does_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    with file.open("rb") as opened:
        for nowait in (None, 1 << 30):
            monkeypatch.setattr(disk, "_NOWAIT", nowait)
            announce(opened.fileno(), 0, SIZE)
        assert len(opened.read()) == SIZE


def test_too_little_space_is_a_problem_with_both_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=4_500_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    require_space(tmp_path / "not" / "yet", 4_500_000)
    with pytest.raises(EmbergeError, match=r"needs 12\.3 GB of disk, and 4\.5 MB are free"):
        require_space(tmp_path / "not" / "yet", 12_300_000_000)
