"""Publishing sends what the publisher was shown, and nothing that only lies in the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge.cli.main import main
from emberge.hashes import hash_file
from emberge_publish import Publication

from tests.support.json_files import changing
from tests.support.loopback_hub import Hub
from tests.support.publishing import Merged

# Of the hub's client itself, about how it calls its HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

Capture = pytest.CaptureFixture[str]


def content_of(file: Path) -> dict[str, Any]:
    """Return a file's entry in artifact.json."""
    return {"size": file.stat().st_size, "xxh3": hash_file(file)}


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
    with changing(folder / "artifact.json") as record:
        record["files"]["notes.json"] = content_of(folder / "notes.json")
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
