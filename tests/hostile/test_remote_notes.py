"""Notes of weights on servers count where emberge wrote them, for this user, and nowhere else."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError, load_plugins, parse_recipe, run_recipe
from emberge.model_folder import Checkpoint
from emberge.tensor_files import RemoteFile, ServerFile, read_header

from tests.support.range_server import serving_ranges

WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def plant(folder: Path, url: str) -> Path:
    """Replace the weights of a model folder by a note that has them read from somewhere else."""
    weights = folder / WEIGHTS
    content = weights.read_bytes()
    header = content[: 8 + int.from_bytes(content[:8], "little")]
    weights.unlink()
    return RemoteFile(url, len(content), '"one"', None, header).write(weights)


def test_a_note_in_a_model_folder_is_refused_with_its_place_and_the_remedy(
    bert: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(bert, tmp_path / "stranger")
    note = plant(folder, f"file://{bert}/{WEIGHTS}")
    with pytest.raises(CheckpointError) as caught:
        _ = Checkpoint(folder).specs
    assert str(note) in str(caught.value)
    assert "Name the model by its address" in str(caught.value)


def test_a_merge_asks_no_server_that_a_folder_names(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "root" / "owner").mkdir(parents=True)
    shutil.copytree(bert, tmp_path / "root" / "owner" / "m")
    folder = shutil.copytree(bert, tmp_path / "stranger")
    plugins = load_plugins()
    with serving_ranges(tmp_path / "root") as server:
        plant(folder, f"{server.url}/web/owner/m/{WEIGHTS}")
        text = f"steps:\n  m:\n    merge: {{models: [{folder}, {bert}], strategy: linear}}\n"
        recipe = parse_recipe(text, plugins, path=tmp_path / "recipe.yaml")
        with pytest.raises(CheckpointError, match=r"safetensors\.remote"):
            run_recipe(recipe, tmp_path / "out", plugins, quiet=True)
        assert server.requests == 0
    assert not (tmp_path / "out" / "m").exists()


def note_in_cache(**changed: Any) -> Path:
    facts = {"url": "https://x/m", "size": 10, "version": "v", "sha256": None}
    facts["header"] = base64.b64encode(b"{}").decode()
    note = ServerFile.cache() / f"{WEIGHTS}.remote"
    note.write_text(json.dumps(facts | changed))
    return note


def link(note: Path) -> Path:
    kept = note.rename(note.parent.parent / "elsewhere")
    note.symlink_to(kept)
    return note


def folder_link(note: Path) -> Path:
    elsewhere = note.parent.parent / "planted"
    elsewhere.mkdir()
    shutil.move(note, elsewhere / note.name)
    (note.parent / "notes").symlink_to(elsewhere)
    return note.parent / "notes" / note.name


def above(note: Path) -> Path:
    target = shutil.move(note, note.parent.parent / note.name)
    return note.parent / ".." / Path(target).name


@pytest.mark.parametrize("move", [link, folder_link, above])
def test_a_link_into_or_out_of_the_cache_is_no_note(move: Callable[[Path], Path]) -> None:
    note = note_in_cache()
    assert RemoteFile.read(note).url == "https://x/m"
    with pytest.raises(CheckpointError, match="note of weights on a server"):
        RemoteFile.read(move(note))


@pytest.mark.parametrize(
    "changed",
    [
        {"url": "file:///etc/passwd"},
        {"url": "ftp://a/m"},
        {"url": "/etc/passwd"},
        {"size": -1},
        {"size": "10"},
        {"size": True},
        {"header": "?"},
    ],
)
def test_a_note_in_the_cache_has_an_address_of_a_known_kind(changed: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        RemoteFile.read(note_in_cache(**changed))


def test_the_cache_is_this_users_alone() -> None:
    note = note_in_cache()
    assert ServerFile.cache().stat().st_mode & 0o077 == 0
    ServerFile.cache().chmod(0o770)
    assert ServerFile.cache().stat().st_mode & 0o077 == 0
    ServerFile.cache().chmod(0o777)
    with pytest.raises(CheckpointError, match="everybody may write"):
        ServerFile.cache()
    note.parent.chmod(0o700)
    note.chmod(0o666)
    with pytest.raises(CheckpointError, match=rf"{note.name}: everybody may write"):
        RemoteFile.read(note)


def test_a_link_in_the_place_of_the_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "cache" / "emberge").mkdir(parents=True)
    (tmp_path / "cache" / "emberge" / "servers").symlink_to(tmp_path / "planted")
    with pytest.raises(CheckpointError, match="is a link"):
        ServerFile.cache()


def test_notes_that_emberge_writes_count(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "root" / "owner" / "m")
    plugins = load_plugins()
    with serving_ranges(tmp_path / "root") as server:
        found = plugins.hook.locate_model(
            reference=f"{server.url}/web/owner/m", revision=None, files="ranges"
        )
    assert read_header(found / f"{WEIGHTS}.remote")[0].keys() == Checkpoint(bert).specs.keys()
