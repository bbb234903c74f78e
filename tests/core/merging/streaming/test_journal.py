"""A journal of finished work: what counts after a kill, and what is left of other work."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from emberge.errors import UnwrittenError
from emberge.merging.streaming import journal
from emberge.merging.streaming.journal import Journal


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every name written as soon as it is marked."""
    monkeypatch.setattr(journal, "SYNC_INTERVAL", 0.0)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Files and folders in the order in which they were synced, each with what it held then."""
    found: list[tuple[str, str]] = []
    real = os.fsync

    def noted(file: Any) -> None:
        real(file)
        number = file if isinstance(file, int) else file.fileno()
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        found.append((path.name, path.read_text() if path.is_file() else ""))

    monkeypatch.setattr(os, "fsync", noted)
    return found


def marked(folder: Path, *names: str, key: str = "work") -> Journal:
    """A journal that was opened and in which names were marked."""
    opened = Journal(folder, key)
    for name in names:
        opened.mark(name, lambda: None)
    return opened


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_marked_tensors_are_done_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet" / "there"
    assert marked(folder, "a", "b").done == set()
    assert marked(folder, "c").done == {"a", "b"}
    assert Journal(folder, "work").done == {"a", "b", "c"}


def test_remarks_of_finished_tensors_are_known_after_a_restart(tmp_path: Path) -> None:
    remarks = {"findings": {"a": 0.1 + 0.2}, "warnings": ["odd"]}
    opened = marked(tmp_path, "v")
    opened.mark("w", lambda: None, remarks)
    again = Journal(tmp_path, "work")
    assert again.done == {"v", "w"}
    assert again.remarks == {"v": {}, "w": remarks}
    again.forget()
    assert not again.remarks


@pytest.mark.parametrize("torn", ['{"done": "c', '{"done": "c"}', "{"])
def test_lines_written_after_a_torn_line_are_read(tmp_path: Path, torn: str) -> None:
    """A name counts with the end of its line; what is torn must not spoil the line that comes after it."""
    path = marked(tmp_path, "a", "b").path
    with path.open("a") as file:
        file.write(torn)
    assert marked(tmp_path, "d").done == {"a", "b"}
    assert Journal(tmp_path, "work").done == {"a", "b", "d"}


def test_a_name_is_written_after_its_bytes_are_on_the_disk(
    tmp_path: Path, synced: list[tuple[str, str]]
) -> None:
    opened = Journal(tmp_path, "work")
    before: list[str] = []
    opened.mark("a", lambda: before.append(opened.path.read_text()))
    (text,) = before
    assert '"a"' not in text
    name, text = synced[-1]
    assert name == opened.path.name
    assert json.loads(text.splitlines()[-1]) == {"done": "a"}


def test_the_key_is_on_the_disk_before_any_work(
    tmp_path: Path, synced: list[tuple[str, str]]
) -> None:
    """The line with the key, and then the folder's list that names the journal."""
    opened = Journal(tmp_path / "side", "work")
    (name, text), (folder, _) = synced[-2:]  # the folder was made before
    assert (name, folder) == (opened.path.name, "side")
    assert json.loads(text) == {"key": "work"}


def test_names_are_written_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the interval names wait, and the disk is left alone; the next one after it brings them along."""
    monkeypatch.setattr(journal, "SYNC_INTERVAL", 3600.0)
    synced: list[str] = []
    opened = Journal(tmp_path, "work")
    for name in ("a", "b"):
        opened.mark(name, lambda: synced.append("weights"))
    assert synced == []
    assert Journal(tmp_path, "work").done == set()
    monkeypatch.setattr(journal, "SYNC_INTERVAL", 0.0)
    opened.mark("c", lambda: synced.append("weights"))
    assert synced == ["weights"]
    assert Journal(tmp_path, "work").done == {"a", "b", "c"}
    opened.mark("d", lambda: None)
    lines = opened.path.read_text().splitlines()
    assert [json.loads(line).get("done") for line in lines] == [None, "a", "b", "c", "d"]


def test_a_forgotten_tensor_is_not_done_after_a_restart(
    tmp_path: Path, synced: list[tuple[str, str]]
) -> None:
    """The work is still the same: its weights stay, and what comes next is journalled."""
    marked(tmp_path, "a", "b")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    opened = Journal(tmp_path, "work")
    opened.forget()
    assert opened.done == set()
    name, text = synced[-1]
    assert name == opened.path.name
    assert json.loads(text) == {"key": "work"}
    opened.mark("c", lambda: None)
    assert Journal(tmp_path, "work").done == {"c"}
    assert (tmp_path / "model.safetensors").exists()


def test_a_restart_keeps_only_weights_and_its_journal(tmp_path: Path) -> None:
    marked(tmp_path, "a")
    for name in ("config.json", "1_Pooling/more/config.json", "2_Dense/journal.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("{}")
    for name in ("model.safetensors", "2_Dense/model.safetensors"):
        (tmp_path / name).write_bytes(b"weights")
    assert Journal(tmp_path, "work").done == {"a"}
    kept = {"journal.jsonl", "model.safetensors", "2_Dense", "2_Dense/model.safetensors"}
    assert tree(tmp_path) == kept


def test_a_journal_with_another_key_empties_the_folder(tmp_path: Path) -> None:
    """What a link leads to belongs to others and stays."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_text("kept")
    side = tmp_path / "side"
    marked(side, "a", key="one")
    (side / "2_Dense").mkdir()
    for name in ("model.safetensors", "2_Dense/model.safetensors"):
        (side / name).write_bytes(b"weights")
    (side / "link").symlink_to(tmp_path / "elsewhere")
    assert Journal(side, "another").done == set()
    assert tree(side) == {"journal.jsonl"}
    assert tree(tmp_path / "elsewhere") == {"kept"}


@pytest.mark.parametrize("text", ["", "{\n", "[]\n", "\xff\n"])
def test_an_unreadable_journal_empties_the_folder(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.jsonl").write_text(text, encoding="latin-1")
    (tmp_path / "model.safetensors").write_bytes(b"whose?")
    assert marked(tmp_path, "a").done == set()
    assert tree(tmp_path) == {"journal.jsonl"}
    assert Journal(tmp_path, "work").done == {"a"}


def test_an_error_of_the_disk_names_the_folder_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = marked(tmp_path / "side", "a")

    def refused(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(UnwrittenError, match=r"/other: the work .*make room"):
        Journal(tmp_path / "other", "work")
    for write in (opened.forget, lambda: opened.mark("b", lambda: None)):
        with pytest.raises(UnwrittenError, match=r"/side: journal.jsonl .*make room"):
            write()
