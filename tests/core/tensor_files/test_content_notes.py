"""Contents that are noted spare a reading, until the file changes."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from emberge.tensor_files import (
    FileContent,
    contents_of,
    current_notes,
    noting_contents,
)
from emberge.tensor_files.content_hashes import ContentNotes
from safetensors.torch import save_file

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
