"""Hashes of pieces in any order equal those of the finished file."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from emberge.hashes import hash_file
from emberge.tensor_files.content_hashes import MOST_EARLY_PIECES, EarlyPieces, UnorderedHasher
from emberge.tensor_files.write_queue import PAGE_BYTES, DirectFile, FilledBuffer

PIECE = 100


class Passing:
    """A file of weights whose pieces pass by a hash; `released` are the places of buffers given back."""

    def __init__(self, path: Path, early: EarlyPieces) -> None:
        self.raw = random.Random(0).randbytes(19_000)
        path.write_bytes(self.raw)
        self.begins = 300
        self.file = DirectFile(path)
        self.released: list[int] = []
        opening = self.raw[: self.begins]
        self.hash = UnorderedHasher(
            self.file, opening, lambda piece: self.released.append(piece.position), early
        )
        self.expected = hash_file(path)
        self.places = list(range(self.begins, len(self.raw), PIECE))

    def pass_by(self, places: Sequence[int]) -> None:
        for place in places:
            some = self.raw[place : place + PIECE]
            buffer = bytearray(2 * PAGE_BYTES)
            data = memoryview(buffer)[place % PAGE_BYTES : place % PAGE_BYTES + len(some)]
            data[:] = some
            self.hash.add_piece(FilledBuffer(buffer, place, data))  # type: ignore[arg-type]

    def finish(self) -> str | None:
        found = self.hash.finish(len(self.raw))
        self.file.close()
        return found


@pytest.fixture
def passing(tmp_path: Path) -> Passing:
    return Passing(tmp_path / "model.safetensors", EarlyPieces())


def test_early_pieces_of_several_files_never_occupy_all_buffers(tmp_path: Path) -> None:
    """Else none would be left for the pieces that all of them wait for."""
    early = EarlyPieces()
    files = [Passing(tmp_path / f"{number}.safetensors", early) for number in range(3)]
    for turn in range(1, 2 * MOST_EARLY_PIECES):
        for file in files:
            file.pass_by([file.places[turn]])
            assert early.count <= MOST_EARLY_PIECES
    assert (
        early.count
        == 3 * (2 * MOST_EARLY_PIECES - 1) - sum(len(one.released) for one in files)
        == MOST_EARLY_PIECES
    )
    for file in files:
        file.pass_by([file.places[0], *file.places[2 * MOST_EARLY_PIECES :]])
        assert file.finish() == file.expected
        assert sorted(file.released) == file.places
    assert early.count == 0


def test_pieces_in_order_are_hashed_without_reading_the_file(
    passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pread", None)  # would be needed to read anything back
    passing.pass_by(passing.places)
    assert passing.finish() == passing.expected
    assert passing.released == passing.places


@pytest.mark.parametrize("seed", range(2))
def test_pieces_in_any_order_give_the_hash_of_the_file(seed: int, passing: Passing) -> None:
    places = random.Random(seed).sample(passing.places, len(passing.places))
    passing.pass_by(places)
    assert len(places) - len(passing.released) <= MOST_EARLY_PIECES, "no more buffers are kept"
    assert passing.finish() == passing.expected
    assert sorted(passing.released) == passing.places


def test_bytes_from_before_are_read_back_and_hashed(passing: Passing) -> None:
    passing.pass_by([p for i, p in enumerate(passing.places) if i % 7 > 2])
    assert passing.finish() == passing.expected


@pytest.mark.parametrize("again", [0, 5])
def test_a_position_written_twice_leaves_the_content_unknown(again: int, passing: Passing) -> None:
    some = passing.places
    passing.pass_by([some[0], some[1], some[3], some[5], some[again], *some[6:]])
    assert passing.finish() is None
    assert len(passing.released) == 5 + len(some[6:]), "every buffer is given back"


@pytest.mark.parametrize("is_cut", [True, False])
def test_an_unreadable_or_short_file_leaves_the_content_unknown(
    is_cut: bool, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    passing.pass_by(passing.places[3:])
    if is_cut:
        os.ftruncate(passing.file.handle, passing.begins + 1)
    else:
        monkeypatch.setattr(os, "pread", broken)
    assert passing.finish() is None
    assert sorted(passing.released) == passing.places[3:]
