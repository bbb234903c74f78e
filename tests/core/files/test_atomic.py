"""Files and folders are complete or absent."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from emberge.files import atomic, disk


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Syncs and renames, in their order; random digits of names are `*`."""
    seen: list[str] = []
    sync, replace = disk.sync, os.replace

    def synced(path: Path) -> None:
        seen.append("sync " + re.sub(r"\.[0-9a-f]{16}\.part$", ".*.part", path.name))
        sync(path)

    def replaced(side: Path, path: Path) -> None:
        seen.append(f"rename {path.name}")
        replace(side, path)

    monkeypatch.setattr(disk, "sync", synced)
    monkeypatch.setattr(atomic, "sync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    return seen


def test_a_file_is_synced_before_it_gets_its_name(tmp_path: Path, calls: list[str]) -> None:
    atomic.write_json(tmp_path / "a.json", {"é": 1})
    assert calls == ["sync .a.json.*.part", "rename a.json", f"sync {tmp_path.name}"]
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"é": 1}
    calls.clear()
    atomic.write_json(tmp_path / "a.json", 3, durable=False)
    assert calls == ["rename a.json"]
    assert _names(tmp_path) == ["a.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "a", "old")

    def fail() -> None:
        with atomic.replace_file(tmp_path / "a") as side:
            side.write_text("ne")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert (tmp_path / "a").read_text() == "old"
    assert _names(tmp_path) == ["a"]


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    with atomic.replace_file(tmp_path / "a") as first:
        first.write_text("first")
        with atomic.replace_file(tmp_path / "a") as second:
            second.write_text("second")
    assert (tmp_path / "a").read_text() == "first"
    assert _names(tmp_path) == ["a"]


def _fill(text: str) -> Callable[[Path], None]:
    def fill(side: Path) -> None:
        (side / "inner").mkdir()
        (side / "inner" / "a").write_text(text)

    return fill


def _fail(side: Path) -> None:
    (side / "a").write_text("half")
    raise OSError("full")


def test_a_folder_is_synced_from_its_leaves_up_and_then_renamed(
    tmp_path: Path, calls: list[str]
) -> None:
    (tmp_path / "side").mkdir()
    _fill("x")(tmp_path / "side")
    atomic.publish(tmp_path / "side", tmp_path / "out")
    assert calls == [*("sync a", "sync inner", "sync side", "rename out"), f"sync {tmp_path.name}"]
    (tmp_path / "side").mkdir()
    (tmp_path / "file").write_text("a file in the way")
    with pytest.raises(OSError):  # noqa: PT011
        atomic.publish(tmp_path / "side", tmp_path / "file", once=True)


def test_a_failed_fill_leaves_the_old_folder(tmp_path: Path) -> None:
    atomic.replace_folder(tmp_path / "m", _fill("old"))
    with pytest.raises(OSError, match="full"):
        atomic.replace_folder(tmp_path / "m", _fail)
    assert (tmp_path / "m" / "inner" / "a").read_text() == "old"
    atomic.replace_folder(tmp_path / "m", _fill("new"))
    assert (tmp_path / "m" / "inner" / "a").read_text() == "new"
    assert _names(tmp_path) == ["m"]


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_folder_is_filled_once_and_others_wait(tmp_path: Path, is_finished: bool) -> None:
    """If the first one fails, the folder is filled after all."""
    begun, end, waits = threading.Event(), threading.Event(), threading.Event()
    filled: list[str] = []

    def fill(side: Path) -> None:
        begun.set()
        assert end.wait(60)
        if not is_finished:
            raise OSError("full")
        _fill("first")(side)

    def fill_too(side: Path) -> None:
        filled.append("second")
        _fill("second")(side)

    def second() -> None:
        waits.set()
        atomic.fill_once(tmp_path / "new" / "m", fill_too)

    with ThreadPoolExecutor(2) as pool:  # a lock is of one opened file, so threads are as processes
        first = pool.submit(atomic.fill_once, tmp_path / "new" / "m", fill)
        assert begun.wait(60)
        other = pool.submit(second)
        assert waits.wait(60)
        assert filled == []
        end.set()
        other.result(60)
    assert (first.exception() is None) == is_finished
    assert filled == ([] if is_finished else ["second"])
    text = (tmp_path / "new" / "m" / "inner" / "a").read_text()
    assert text == ("first" if is_finished else "second")
    atomic.fill_once(tmp_path / "new" / "m", _fail)
    assert _names(tmp_path / "new") == ["m"]


def test_new_folders_are_in_a_synced_parent_and_links_replaced(
    tmp_path: Path, calls: list[str]
) -> None:
    for _ in range(2):
        disk.make_folder(tmp_path / "a" / "b")
    assert calls == [f"sync {tmp_path.name}", "sync a"]
    calls.clear()
    for target in ("first", "second"):
        atomic.replace_link(tmp_path / "link", target)
    assert os.readlink(tmp_path / "link") == "second"
    assert _names(tmp_path) == ["a", "link"]
    assert calls == ["rename link", f"sync {tmp_path.name}"] * 2


def test_sync_tree_skips_links_and_without_deep_subfolders(
    tmp_path: Path, calls: list[str]
) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "elsewhere").symlink_to("nowhere")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "d").write_text("d")
    disk.sync_tree(tmp_path, deep=False)
    assert calls == ["sync a", f"sync {tmp_path.name}"]
    calls.clear()
    disk.sync_tree(tmp_path)
    assert calls == ["sync d", "sync below", "sync a", f"sync {tmp_path.name}"]


def test_link_or_copy_replaces_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("new")
    target.write_text("old")
    atomic.link_or_copy(str(source), str(target))
    assert target.samefile(source)

    def refused(source: str, target: str) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    atomic.link_or_copy(str(source), str(target))
    assert not target.samefile(source)
    assert target.read_text() == "new"


def test_clear_torn_removes_what_a_kill_left(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    for folder in (tmp_path, below):
        (folder / ".file.0123456789abcdef.part").write_text("half")
        (folder / ".m.0123456789abcdef.part" / "inner").mkdir(parents=True)
        (folder / ".link.0123456789abcdef.part").symlink_to("nowhere")
        (folder / ".kept.part").touch()
    atomic.clear_torn(tmp_path)
    assert (_names(tmp_path), len(_names(below))) == ([".kept.part", "below"], 4)
    atomic.clear_torn(tmp_path, deep=True)
    assert _names(below) == [".kept.part"]
