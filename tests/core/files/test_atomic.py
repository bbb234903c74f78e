"""Files and folders that are whole or absent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from emberge import CheckpointError
from emberge.files import atomic


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Syncs and renames, in their order."""
    seen: list[str] = []
    sync, replace = atomic.sync, os.replace

    def synced(path: Path) -> None:
        seen.append(f"sync {path.name}")
        sync(path)

    def replaced(side: Path, path: Path) -> None:
        seen.append(f"rename {path.name}")
        replace(side, path)

    monkeypatch.setattr(atomic, "sync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    return seen


def test_a_file_is_on_the_disk_before_its_name_and_its_name_after(
    tmp_path: Path, calls: list[str]
) -> None:
    atomic.write_json(tmp_path / "a.json", {"é": 1})
    assert calls == ["sync .a.json.part", "rename a.json", f"sync {tmp_path.name}"]
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"é": 1}
    calls.clear()
    atomic.write_text(tmp_path / "a.json", "2", durable=False)
    assert calls == ["rename a.json"]
    assert _names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_that_fails_leaves_the_old_one_and_nothing_else(
    tmp_path: Path, shared: bool
) -> None:
    atomic.write_text(tmp_path / "a", "old", shared=shared)

    def fail() -> None:
        with atomic.replace_file(tmp_path / "a", shared=shared) as side:
            side.write_text("ne")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert (tmp_path / "a").read_text() == "old"
    assert _names(tmp_path) == ["a"]


def test_two_writers_of_a_shared_file_do_not_meet(tmp_path: Path) -> None:
    with atomic.replace_file(tmp_path / "a", shared=True) as first:
        first.write_text("first")
        with atomic.replace_file(tmp_path / "a", shared=True) as second:
            second.write_text("second")
    assert (tmp_path / "a").read_text() == "first"


def _fill(text: str) -> Callable[[Path], None]:
    def fill(side: Path) -> None:
        (side / "inner").mkdir()
        (side / "inner" / "a").write_text(text)

    return fill


def _fail(side: Path) -> None:
    (side / "a").write_text("half")
    raise OSError("full")


def test_a_folder_is_synced_from_the_leaves_up_before_its_rename(
    tmp_path: Path, calls: list[str]
) -> None:
    (tmp_path / "side").mkdir()
    _fill("x")(tmp_path / "side")
    atomic.publish(tmp_path / "side", tmp_path / "out")
    assert calls == [
        *("sync a", "sync inner", "sync side", "rename out"),
        f"sync {tmp_path.name}",
    ]


def test_a_folder_that_fails_to_fill_leaves_the_old_one(tmp_path: Path) -> None:
    atomic.replace_folder(tmp_path / "m", _fill("old"))
    with pytest.raises(OSError, match="full"):
        atomic.replace_folder(tmp_path / "m", _fail)
    assert (tmp_path / "m" / "inner" / "a").read_text() == "old"
    atomic.clear_torn(tmp_path)
    assert _names(tmp_path) == ["m"]
    atomic.replace_folder(tmp_path / "m", _fill("new"))
    assert (tmp_path / "m" / "inner" / "a").read_text() == "new"


def test_a_folder_is_filled_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"):
        atomic.fill_once(tmp_path / "m", _fail)
    assert _names(tmp_path) == []

    def slow(side: Path) -> None:  # another process fills it meanwhile
        atomic.fill_once(tmp_path / "m", _fill("first"))
        _fill("second")(side)

    atomic.fill_once(tmp_path / "m", slow)
    atomic.fill_once(tmp_path / "m", _fail)
    assert (tmp_path / "m" / "inner" / "a").read_text() == "first"
    assert _names(tmp_path) == ["m"]


def test_a_new_folder_is_in_a_parent_that_has_its_name(tmp_path: Path, calls: list[str]) -> None:
    atomic.make_folder(tmp_path / "a" / "b")
    atomic.make_folder(tmp_path / "a" / "b")
    assert calls == [f"sync {tmp_path.name}", "sync a"]


def test_a_link_is_replaced_at_once(tmp_path: Path) -> None:
    for target in ("first", "second"):
        atomic.replace_link(tmp_path / "link", target)
    assert os.readlink(tmp_path / "link") == "second"
    assert _names(tmp_path) == ["link"]


def test_only_nothing_or_an_empty_folder_is_free(tmp_path: Path) -> None:
    atomic.require_free(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    atomic.require_free(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="choose another"):
        atomic.require_free(tmp_path)
