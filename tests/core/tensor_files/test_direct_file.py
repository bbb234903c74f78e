"""A file written direct has the bytes of one written through the cache, wherever pieces begin and end."""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from emberge.tensor_files.write_queue import PAGE, DirectFile

SIZE = 5 * PAGE + 123


def aligned(size: int, place: int) -> memoryview:
    """Return random bytes at the distance from a page's start that `place` has."""
    start = place % PAGE
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
    if not file.direct:
        pytest.skip("the file system of the temporary folder takes no direct writes")


def content(file: DirectFile) -> bytes:
    return file.read(SIZE + 1, 0)


PIECES = [
    (0, PAGE),
    (0, 1),
    (1, PAGE),
    (PAGE - 1, 2),
    (PAGE - 1, PAGE + 2),
    (PAGE, 3 * PAGE),
    (7, 10),
    (PAGE + 8, PAGE - 8),
    (PAGE + 8, 2 * PAGE - 9),
    (3, SIZE - 3),
    (2 * PAGE, SIZE - 2 * PAGE),
    (SIZE, 0),
]


@pytest.mark.parametrize(("place", "size"), PIECES)
def test_the_bytes_are_where_they_belong_and_nowhere_else(
    place: int, size: int, file: DirectFile
) -> None:
    data = aligned(size, place)
    file.write_direct(data, place)
    assert content(file) == bytes(place) + bytes(data) + bytes(SIZE - place - size)


@pytest.mark.parametrize(("place", "size"), PIECES)
def test_whole_pages_go_direct_and_the_fragments_at_both_ends_do_not(
    place: int, size: int, file: DirectFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_direct(file)
    watched = Watched(monkeypatch, lambda _: None)
    file.write_direct(aligned(size, place), place)
    pages = {p for p in range(SIZE // PAGE) if place <= p * PAGE and (p + 1) * PAGE <= place + size}
    direct = {start // PAGE + i for start, length in watched.direct for i in range(length // PAGE)}
    assert direct == pages
    assert all(start % PAGE == length % PAGE == 0 for start, length in watched.direct)
    assert sum(length for _, length in watched.cached) == size - PAGE * len(pages)
    assert all(length < PAGE for _, length in watched.cached)


def test_pieces_that_share_a_page_may_come_in_any_order(file: DirectFile) -> None:
    cuts = [0, 100, PAGE + 3, 2 * PAGE + 5, 2 * PAGE + 6, 5 * PAGE + 1, SIZE]
    whole = random.Random(0).randbytes(SIZE)
    pieces = list(itertools.pairwise(cuts))
    for start, end in random.Random(1).sample(pieces, len(pieces)):
        view = aligned(end - start, start)
        view[:] = whole[start:end]
        file.write_direct(view, start)
    assert content(file) == whole


def test_a_range_that_was_set_aside_is_full_of_zeros_and_no_longer_than_the_file(
    file: DirectFile, tmp_path: Path
) -> None:
    file.reserve(PAGE, 3 * PAGE)
    assert content(file) == bytes(SIZE)
    file.reserve(0, 10 * SIZE)
    assert (tmp_path / "f").stat().st_size == SIZE


# ── where it cannot be ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_refuses_to_open_direct_gets_all_through_the_cache(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def opened(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", opened)
    plain = DirectFile(tmp_path / "g")
    assert not plain.direct
    plain.reserve(0, SIZE)
    data = aligned(SIZE, 0)
    plain.write_direct(data, 0)
    assert content(plain) == bytes(data)
    plain.close()


@pytest.mark.parametrize("at", [0, 1])
def test_a_file_system_that_refuses_a_direct_write_gets_the_rest_through_the_cache(
    at: int, file: DirectFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_direct(file)

    def refuse(number: int) -> None:
        if number == at:
            raise OSError(errno.EINVAL, "Invalid argument")

    watched = Watched(monkeypatch, refuse)
    data = aligned(SIZE, 0)
    for start, end in ((0, 2 * PAGE), (2 * PAGE, 4 * PAGE), (4 * PAGE, SIZE)):
        file.write_direct(data[start:end], start)
    assert content(file) == bytes(data)
    assert not file.direct
    assert len(watched.direct) == at, "it is not tried again"


def test_a_write_that_is_cut_short_is_taken_up_again(
    file: DirectFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, place: real(handle, data[:PAGE], place))
    data = aligned(SIZE - 9, 9)
    file.write_direct(data, 9)
    assert content(file) == bytes(9) + bytes(data)


def test_any_other_error_is_raised(file: DirectFile, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_direct(file)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Watched(monkeypatch, full)
    with pytest.raises(OSError, match="No space"):
        file.write_direct(aligned(SIZE, 0), 0)
    assert file.direct


def test_other_systems_write_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    plain = DirectFile(tmp_path / "g")
    assert not plain.direct
    data = aligned(SIZE, 0)
    plain.write_direct(data, 0)
    plain.sync()
    assert content(plain) == bytes(data)
    plain.close()
