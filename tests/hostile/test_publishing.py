"""Publishing sends what the publisher was shown, and nothing that only lies in the folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from emberge.cli.main import main
from emberge.hashes import hash_file
from emberge_publish import Publication

from tests.support.loopback_hub import Hub
from tests.support.publishing import Merged

# Of the hub's client itself, about how it calls its HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

Capture = pytest.CaptureFixture[str]
RECIPE = """
seed: 0
steps:
  soup:
    merge: {models: [./legal, ./faq], strategy: linear}
  public:
    publish: {model: $soup, name: me/soup}
"""


def content_of(file: Path) -> dict[str, Any]:
    """Return a file's entry in artifact.json."""
    return {"size": file.stat().st_size, "xxh3": hash_file(file)}


# ── a recipe that uploads ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def uploading(merged: Merged, tmp_path: Path, capsys: Capture) -> Path:
    merged("license: mit", "license: mit")
    capsys.readouterr()
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "recipe.yaml"


def test_check_names_in_its_first_line_where_a_run_uploads_to(
    uploading: Path, capsys: Capture
) -> None:
    assert main(["check", str(uploading), "--offline"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "uploads to me/soup" in first
    assert "--allow-upload" in first


def test_a_run_that_uploads_is_refused_before_any_work_without_the_flag(
    hub: Hub, uploading: Path, capsys: Capture
) -> None:
    assert main(["run", str(uploading), "--out", "out", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "recipe.yaml:6" in said
    assert "--allow-upload" in said
    assert not Path("out").exists()
    assert not hub.asked


# ── what lies in a result's folder ──────────────────────────────────────────────────────────────────


def there(hub: Hub) -> set[str]:
    folder = hub.root / "me/soup/main"
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    return files - {".gitattributes"}


def publish(*more: str) -> int:
    return main(["publish", "soup", "me/soup", "--yes", *more])


def test_what_no_record_names_stays_and_is_named(
    hub: Hub, merged: Merged, capsys: Capture, tmp_path: Path
) -> None:
    folder = merged("license: mit", "license: mit")
    before = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    (folder / "notes").mkdir()
    strays = ("id_rsa", "notes/todo.md", ".env")
    for name in strays:
        (folder / name).write_text("mine")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "diary.txt").write_text("dear")
    (folder / "more").symlink_to(tmp_path / "private")
    capsys.readouterr()
    assert publish() == 0
    shown = capsys.readouterr().out
    assert there(hub) == before
    note = next(line for line in shown.splitlines() if "does not name" in line)
    for name in ("id_rsa", "notes/todo.md"):
        assert name in note
    assert "diary" not in shown


def test_a_link_in_the_place_of_a_file_is_refused(
    hub: Hub, merged: Merged, capsys: Capture, tmp_path: Path
) -> None:
    folder = merged("license: mit", "license: mit")
    os.rename(folder / "config.json", tmp_path / "aside")
    (folder / "config.json").symlink_to(tmp_path / "aside")
    capsys.readouterr()
    assert publish() == 2
    assert "config.json" in capsys.readouterr().err
    assert not hub.asked


def test_a_record_that_names_files_of_elsewhere_is_refused(
    hub: Hub, merged: Merged, tmp_path: Path
) -> None:
    folder = merged("license: mit", "license: mit")
    (tmp_path / "secret.txt").write_text("s")
    for name in ("../secret.txt", str(tmp_path / "secret.txt")):
        record = json.loads((folder / "artifact.json").read_text())
        content = content_of(tmp_path / "secret.txt")
        (folder / "artifact.json").write_text(
            json.dumps({**record, "files": {**record["files"], name: content}})
        )
        publish()
        assert "secret.txt" not in "".join(there(hub))


# ── the repository and the record ───────────────────────────────────────────────────────────────────


def test_a_commit_of_somebody_else_between_looking_and_sending_is_not_overwritten(
    hub: Hub, merged: Merged, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = merged("license: mit", "license: mit")
    assert publish() == 0
    (folder / "notes.json").write_text("{}")
    record = json.loads((folder / "artifact.json").read_text())
    record["files"]["notes.json"] = content_of(folder / "notes.json")
    (folder / "artifact.json").write_text(json.dumps(record))
    ask = Publication.require_free

    def meanwhile(self: Publication, remote: Any) -> None:
        ask(self, remote)
        hub.commits["me/soup"].append("f" * 40)

    monkeypatch.setattr(Publication, "require_free", meanwhile)
    capsys.readouterr()
    assert publish("--replace") == 1
    assert "412" in capsys.readouterr().err
    assert "notes.json" not in there(hub)


def test_a_record_has_the_hash_of_every_other_file(
    hub: Hub, merged: Merged, tmp_path: Path
) -> None:
    folder = merged("license: mit", "license: mit")
    assert publish() == 0
    for place in (folder, hub.root / "me/soup/main"):
        record = json.loads((place / "artifact.json").read_text())
        files = {
            p.relative_to(place).as_posix(): content_of(p)
            for p in place.rglob("*")
            if p.is_file() and p.name not in ("artifact.json", ".gitattributes")
        }
        assert {"README.md", "model.safetensors"} <= files.keys()
        assert record["files"] == files
        assert main(["verify", str(place)]) == 0
