"""A copied model is complete, and has no other files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from emberge import CheckpointError
from emberge.model_folder import copy_model, hash_model


@pytest.fixture
def folder(bert: Path, tmp_path: Path) -> Path:
    """A model as a repository has it: with a card, a training's checkpoints and a licence."""
    place = tmp_path / "model"
    shutil.copytree(bert, place)
    for name in ("README.md", "LICENSE", "artifact.json", "checkpoints/step-1/config.json"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("{}")
    return place


@pytest.mark.parametrize("link", [False, True])
def test_only_files_of_the_model_are_copied_or_linked(
    folder: Path, tmp_path: Path, link: bool
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("another model's")
    copy_model(folder, out, link=link)
    assert hash_model(out) == hash_model(folder)
    assert (out / "2_Normalize").is_dir(), "a module without a file"
    assert (out / "LICENSE").is_file()
    for name in ("README.md", "artifact.json", "checkpoints"):
        assert not (out / name).exists()
    weights = [place / "model.safetensors" for place in (folder, out)]
    assert (weights[0].stat().st_ino == weights[1].stat().st_ino) is link


def test_links_into_a_hubs_cache_are_copied_as_files(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hub" / "models--me--model"
    snapshot = cache / "snapshots" / "main"
    (cache / "blobs").mkdir(parents=True)
    for number, file in enumerate(p for p in folder.rglob("*") if p.is_file()):
        place = snapshot / file.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, cache / "blobs" / str(number))
        place.symlink_to(os.path.relpath(cache / "blobs" / str(number), place.parent))
    copy_model(snapshot, tmp_path / "out")
    assert hash_model(tmp_path / "out") == hash_model(folder)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]
    with pytest.raises(CheckpointError, match="nowhere"):
        copy_model(tmp_path / "nowhere", tmp_path / "out")
