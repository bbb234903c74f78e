"""Files and folders that are whole or absent."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from emberge import CheckpointError, EmbergeError
from emberge.files import atomic, require_space


def _shown(name: str) -> str:
    """A name with its random digits, if it has any, as `*`."""
    return re.sub(r"\.[0-9a-f]{16}\.part$", ".*.part", name)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Syncs and renames, in their order."""
    seen: list[str] = []
    sync, replace = atomic.sync, os.replace

    def synced(path: Path) -> None:
        seen.append(f"sync {_shown(path.name)}")
        sync(path)

    def replaced(side: Path, path: Path) -> None:
        seen.append(f"rename {path.name}")
        replace(side, path)

    monkeypatch.setattr(atomic, "sync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    return seen


def test_a_file_is_on_the_disk_before_and_its_name_after(tmp_path: Path, calls: list[str]) -> None:
    atomic.write_json(tmp_path / "a.json", {"é": 1})
    assert calls == ["sync .a.json.*.part", "rename a.json", f"sync {tmp_path.name}"]
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"é": 1}
    calls.clear()
    atomic.write_text(tmp_path / "a.json", "2", durable=False)
    atomic.write_json(tmp_path / "a.json", 3, durable=False)
    assert calls == ["rename a.json"] * 2
    assert _names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_that_fails_leaves_the_old_one_alone(tmp_path: Path, shared: bool) -> None:
    atomic.write_text(tmp_path / "a", "old", shared=shared)

    def fail() -> None:
        with atomic.replace_file(tmp_path / "a", shared=shared) as side:
            side.write_text("ne")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert (tmp_path / "a").read_text() == "old"
    assert _names(tmp_path) == ["a"]


def test_two_writers_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with atomic.replace_file(tmp_path / "a", shared=True) as first:
        first.write_text("first")
        with atomic.replace_file(tmp_path / "a", shared=True) as second:
            second.write_text("second")
    assert (tmp_path / "a").read_text() == "first"
    with atomic.replace_file(tmp_path / "a", shared=True) as side:
        side.write_text("half")
        atomic.clear_torn(tmp_path)
        assert side.exists()
    assert _names(tmp_path) == ["a"]
    sides: list[str] = []
    real = os.replace

    def replaced(side: Path, path: Path) -> None:
        sides.append(Path(side).name)
        real(side, path)

    monkeypatch.setattr(os, "replace", replaced)
    for shared in (False, True, True):
        atomic.write_text(tmp_path / "a", "x", shared=shared)
    assert {_shown(side) for side in sides} == {".a.*.part"}
    assert len(set(sides)) == 3


def _fill(text: str) -> Callable[[Path], None]:
    def fill(side: Path) -> None:
        (side / "inner").mkdir()
        (side / "inner" / "a").write_text(text)

    return fill


def _fail(side: Path) -> None:
    (side / "a").write_text("half")
    raise OSError("full")


def test_a_folder_is_synced_leaves_first_and_then_renamed(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "side").mkdir()
    _fill("x")(tmp_path / "side")
    atomic.publish(tmp_path / "side", tmp_path / "out")
    assert calls == [*("sync a", "sync inner", "sync side", "rename out"), f"sync {tmp_path.name}"]


def test_a_folder_that_fails_to_fill_or_be_published_leaves_the_old_one(tmp_path: Path) -> None:
    atomic.replace_folder(tmp_path / "m", _fill("old"))
    with pytest.raises(OSError, match="full"):
        atomic.replace_folder(tmp_path / "m", _fail)
    assert (tmp_path / "m" / "inner" / "a").read_text() == "old"
    atomic.clear_torn(tmp_path)
    assert _names(tmp_path) == ["m"]
    atomic.replace_folder(tmp_path / "m", _fill("new"))
    assert (tmp_path / "m" / "inner" / "a").read_text() == "new"
    side = tmp_path / "side"
    side.mkdir()
    (tmp_path / "file").write_text("a file in the way")
    with pytest.raises(OSError):  # noqa: PT011
        atomic.publish(side, tmp_path / "file", once=True)


def test_a_folder_is_filled_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"):
        atomic.fill_once(tmp_path / "m", _fail)
    assert _names(tmp_path) == []

    def slow(side: Path) -> None:  # another process began in the same moment, and ends first
        (tmp_path / "m").mkdir()
        _fill("first")(tmp_path / "m")
        _fill("second")(side)

    atomic.fill_once(tmp_path / "m", slow)
    atomic.fill_once(tmp_path / "m", _fail)
    assert (tmp_path / "m" / "inner" / "a").read_text() == "first"
    assert _names(tmp_path) == ["m"]
    atomic.fill_once(tmp_path / "not" / "there" / "m", _fill("new"))
    assert (tmp_path / "not" / "there" / "m" / "inner" / "a").read_text() == "new"


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_folder_that_another_one_fills_is_waited_for(tmp_path: Path, is_finished: bool) -> None:
    """If the other one fails, the folder is filled after all; what a killed one left holds up nobody."""
    begun, end = threading.Event(), threading.Event()
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

    (tmp_path / f".m.{'0' * 16}.part").mkdir()
    with ThreadPoolExecutor(2) as pool:  # a lock is of one opened file, so threads are as processes
        first = pool.submit(atomic.fill_once, tmp_path / "m", fill)
        assert begun.wait(60)
        second = pool.submit(atomic.fill_once, tmp_path / "m", fill_too)
        with pytest.raises(TimeoutError):
            second.result(0.5)
        assert filled == []
        end.set()
        second.result(60)
    assert (first.exception() is None) == is_finished
    assert filled == ([] if is_finished else ["second"])
    text = (tmp_path / "m" / "inner" / "a").read_text()
    assert text == ("first" if is_finished else "second")


def test_new_folders_are_in_a_synced_parent_and_links_replaced(
    tmp_path: Path, calls: list[str]
) -> None:
    atomic.make_folder(tmp_path / "a" / "b")
    atomic.make_folder(tmp_path / "a" / "b")
    assert calls == [f"sync {tmp_path.name}", "sync a"]
    calls.clear()
    for target in ("first", "second"):
        atomic.replace_link(tmp_path / "link", target)
    assert os.readlink(tmp_path / "link") == "second"
    assert _names(tmp_path) == ["a", "link"]
    assert calls == ["rename link", f"sync {tmp_path.name}"] * 2


def test_some_files_are_left_to_those_who_sync_them(tmp_path: Path, calls: list[str]) -> None:
    for name in ("a.json", "b.safetensors", "cXXXX"):
        (tmp_path / name).write_text(name)
    (tmp_path / "elsewhere").symlink_to("nowhere")
    atomic.sync_tree(tmp_path, skipped=".safetensors")
    assert calls == ["sync a.json", "sync cXXXX", f"sync {tmp_path.name}"]
    calls.clear()
    atomic.sync_tree(tmp_path)
    assert calls == ["sync a.json", "sync b.safetensors", "sync cXXXX", f"sync {tmp_path.name}"]
    calls.clear()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "d").write_text("d")
    atomic.sync_tree(tmp_path, deep=False)
    assert calls == ["sync a.json", "sync b.safetensors", "sync cXXXX", f"sync {tmp_path.name}"]


def test_a_second_name_or_a_copy_replaces_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("new")
    target.write_text("old")
    atomic.link_or_copy(str(source), str(target))
    assert target.samefile(source)
    assert target.read_text() == "new"

    def refused(source: str, target: str) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("new")
    os.utime(source, (1, 1))
    atomic.link_or_copy(str(source), str(target))
    assert not target.samefile(source)
    assert target.read_text() == "new"
    assert target.stat().st_mtime == 1


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_a_kill_left_is_removed_by_the_next_writer(tmp_path: Path, kind: str) -> None:
    torn = tmp_path / ".m.0123456789abcdef.part"
    kept = tmp_path / ".m.more.0123456789abcdef.part"  # of another name
    for path in (torn, kept):
        if kind == "folder":
            (path / "inner").mkdir(parents=True)
        elif kind == "file":
            path.write_text("half")
        else:
            path.symlink_to("nowhere")
    if kind == "folder":
        atomic.replace_folder(tmp_path / "m", _fill("whole"))
        assert _names(tmp_path / "m") == ["inner"]
    elif kind == "file":
        atomic.write_text(tmp_path / "m", "whole")
    else:
        atomic.replace_link(tmp_path / "m", "whole")
    assert _names(tmp_path) == [kept.name, "m"]
    atomic.clear_torn(tmp_path.parent, deep=True)
    assert _names(tmp_path) == ["m"]


def test_a_second_writer_of_a_file_or_a_folder_is_turned_away(tmp_path: Path) -> None:
    with atomic.replace_file(tmp_path / "a") as side:
        side.write_text("first")
        with pytest.raises(CheckpointError, match="another process is writing it"):
            atomic.write_text(tmp_path / "a", "second")
    assert (tmp_path / "a").read_text() == "first"

    def slow(side: Path) -> None:
        with pytest.raises(CheckpointError, match="another process is writing it"):
            atomic.replace_folder(tmp_path / "m", _fill("second"))
        _fill("first")(side)

    atomic.replace_folder(tmp_path / "m", slow)
    assert (tmp_path / "m" / "inner" / "a").read_text() == "first"
    assert _names(tmp_path) == ["a", "m"]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_disk_too_full_for_the_plan_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**10, 10**10, 4_500_000))
    require_space(tmp_path / "not" / "yet", 4_500_000)
    with pytest.raises(EmbergeError) as caught:
        require_space(tmp_path / "not" / "yet", 12_300_000_000)
    assert "needs 12.3 GB of disk, and 4.5 MB are free" in str(caught.value)
