"""Hashes of pieces that pass by are those of the finished file, and noted contents spare a reading."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from emberge.tensor_files import FileContent, contents_of, noting_contents, read_header
from emberge.tensor_files.content_hashes import (
    MOST_EARLY_PIECES,
    ContentNotes,
    EarlyPieces,
    UnorderedHasher,
    current_notes,
)
from emberge.tensor_files.write_queue import PAGE, DirectFile, FilledBuffer
from safetensors.torch import save_file

PIECE = 100


class Passing:
    """A file of weights whose pieces pass by a hash; `released` are the places of buffers given back."""

    def __init__(self, path: Path, early: EarlyPieces) -> None:
        generator = torch.Generator().manual_seed(0)
        shapes = {"a": (40, 3), "b": (7,), "c": (), "d": (0, 4), "e": (901, 5)}
        save_file({n: torch.randn(s, generator=generator) for n, s in shapes.items()}, path)
        self.raw = path.read_bytes()
        specs = list(read_header(path)[0].values())
        self.begins = min(spec.offset for spec in specs)
        self.file = DirectFile(path)
        self.released: list[int] = []
        opening = self.raw[: self.begins]
        self.hash = UnorderedHasher(
            self.file, opening, specs, lambda p: self.released.append(p.place), early
        )
        self.expected = FileContent.of_file(path)
        self.places = list(range(self.begins, len(self.raw), PIECE))

    def pass_by(self, places: Sequence[int]) -> None:
        for place in places:
            some = self.raw[place : place + PIECE]
            buffer = bytearray(2 * PAGE)
            buffer[place % PAGE : place % PAGE + len(some)] = some
            self.hash.add_piece(FilledBuffer(buffer, place, len(some)))  # type: ignore[arg-type]

    def finish(self) -> FileContent | None:
        found = self.hash.finish(len(self.raw))
        self.file.close()
        return found


@pytest.fixture
def passing(tmp_path: Path) -> Passing:
    return Passing(tmp_path / "model.safetensors", EarlyPieces())


def test_files_never_keep_all_buffers_together(tmp_path: Path) -> None:
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


def test_pieces_in_order_are_all_it_needs(
    passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pread", None)  # would be needed to read anything back
    passing.pass_by(passing.places)
    assert passing.finish() == passing.expected
    assert passing.released == passing.places


def test_pieces_that_come_a_little_early_wait(
    passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pread", None)
    some = passing.places[:MOST_EARLY_PIECES]
    passing.pass_by(some[1:])
    assert passing.released == []
    passing.pass_by([some[0], *passing.places[MOST_EARLY_PIECES:]])
    assert passing.finish() == passing.expected
    assert passing.released == passing.places


@pytest.mark.parametrize("seed", range(4))
def test_any_order_gives_the_same(seed: int, passing: Passing) -> None:
    places = random.Random(seed).sample(passing.places, len(passing.places))
    passing.pass_by(places)
    assert len(places) - len(passing.released) <= MOST_EARLY_PIECES, "no more buffers are kept"
    assert passing.finish() == passing.expected
    assert sorted(passing.released) == passing.places


def test_what_was_in_the_file_before_is_read_back(passing: Passing) -> None:
    passing.pass_by([p for i, p in enumerate(passing.places) if i % 7 > 2])
    assert passing.finish() == passing.expected


def test_nothing_at_all_passes_by(passing: Passing) -> None:
    assert passing.finish() == passing.expected


@pytest.mark.parametrize("again", [0, 3, 5])
def test_a_place_that_is_written_twice_leaves_the_content_unknown(
    again: int, passing: Passing
) -> None:
    some = passing.places
    passing.pass_by([some[0], some[1], some[3], some[5], some[again], *some[6:]])
    assert passing.finish() is None
    assert len(passing.released) == 5 + len(some[6:]), "every buffer is given back"


def test_a_file_that_ends_too_soon_leaves_the_content_unknown(passing: Passing) -> None:
    passing.pass_by(passing.places[3:])
    os.ftruncate(passing.file.handle, passing.begins + 1)
    assert passing.finish() is None
    assert sorted(passing.released) == passing.places[3:]


def test_a_disk_that_cannot_be_read_leaves_the_content_unknown(
    passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    passing.pass_by(passing.places[3:])
    monkeypatch.setattr(os, "pread", broken)
    assert passing.finish() is None


NOTED = FileContent(1, "as noted")


def test_a_noted_file_is_not_read_and_any_other_is(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"w": torch.ones(3)}, tmp_path / f"{name}.safetensors")
    notes = ContentNotes()
    notes.note(tmp_path / "a.safetensors", NOTED)
    found = contents_of(tmp_path, known=notes.of)
    assert found == {
        "a.safetensors": NOTED,
        "b.safetensors": FileContent.of_file(tmp_path / "b.safetensors"),
    }
    assert contents_of(tmp_path)["a.safetensors"] == found["b.safetensors"]


def test_a_folder_that_is_renamed_keeps_its_notes(tmp_path: Path) -> None:
    (tmp_path / "side").mkdir()
    (tmp_path / "side" / "f").write_bytes(b"abc")
    notes = ContentNotes()
    notes.note(tmp_path / "side" / "f", NOTED)
    os.replace(tmp_path / "side", tmp_path / "out")
    assert contents_of(tmp_path / "out", known=notes.of) == {"f": NOTED}


def test_a_change_right_after_the_note_shows(tmp_path: Path) -> None:
    """Also within one tick of the clock, and with as many bytes."""
    file = tmp_path / "f"
    for number in range(20):
        file.write_bytes(b"abc")
        notes = ContentNotes()
        notes.note(file, NOTED)
        with file.open("rb+") as open_file:
            open_file.write(b"x")
        assert notes.of(file) is None, number


def test_another_file_of_the_same_name_is_not_it(tmp_path: Path) -> None:
    for name in ("f", "g"):
        (tmp_path / name).write_bytes(b"abc")
    notes = ContentNotes()
    notes.note(tmp_path / "f", NOTED)
    os.replace(tmp_path / "g", tmp_path / "f")
    assert notes.of(tmp_path / "f") is None


def test_notes_are_taken_inside_the_block_alone() -> None:
    assert current_notes() is None
    with noting_contents() as outer:
        with noting_contents() as inner:
            assert current_notes() is inner
        assert current_notes() is outer
    assert current_notes() is None
