"""The replay of power cuts finds the known ways to lose a file, and none where all is synced as it must."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.disk_recorder import DiskRecorder
from tests.support.power_cuts import SECTOR, Cut, contents

OLD, NEW = b"old" * 400, b"new" * 700


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def cuts_of(program: Callable[[DiskRecorder], None], root: Path) -> list[Cut]:
    """All disks that a power cut may leave of a program, which begins with `a` safe in a folder."""
    (root / "a").write_bytes(OLD)
    with DiskRecorder(root) as recorder:
        program(recorder)
    return list(recorder.log.cuts(draws=20))


def found(cut: Cut, name: str) -> bytes | None:
    return cut.tree[name].content if name in cut.tree else None


def replace(root: Path, *, data: bool, name: bool) -> Callable[[DiskRecorder], None]:
    """A program that replaces `a`, with or without the syncs of the new file and of its folder."""

    def program(recorder: DiskRecorder) -> None:
        side = root / ".a"
        side.write_bytes(NEW)
        if data:
            sync(side)
        os.replace(side, root / "a")
        if name:
            sync(root)
        recorder.announce("replaced")

    return program


def test_a_file_that_is_synced_before_it_is_renamed_is_old_or_new(tmp_path: Path) -> None:
    cuts = cuts_of(replace(tmp_path, data=True, name=True), tmp_path)
    assert {found(cut, "a") for cut in cuts} == {OLD, NEW}
    assert {found(cut, "a") for cut in cuts if cut.announced} == {NEW}


def test_a_file_that_is_renamed_without_a_sync_may_be_empty_zero_cut_or_mixed(
    tmp_path: Path,
) -> None:
    kept = {found(cut, "a") for cut in cuts_of(replace(tmp_path, data=False, name=True), tmp_path)}
    assert {OLD, NEW, b"", bytes(len(NEW)), NEW[:SECTOR]} <= kept
    assert NEW[:SECTOR] + bytes(len(NEW) - SECTOR) in kept
    assert any(one and one[:SECTOR] == bytes(SECTOR) and one.strip(b"\0") for one in kept)


def test_a_name_that_is_announced_before_its_folder_is_synced_may_be_lost(tmp_path: Path) -> None:
    cuts = cuts_of(replace(tmp_path, data=True, name=False), tmp_path)
    assert {found(cut, "a") for cut in cuts if cut.announced} == {OLD, NEW}


@pytest.mark.parametrize("move", ["rename", "replace"])
def test_the_log_has_everything_that_was_done(tmp_path: Path, move: str) -> None:
    def program(recorder: DiskRecorder) -> None:
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "b").write_bytes(NEW)
        os.link(tmp_path / "x" / "b", tmp_path / "x" / "c")
        sync(tmp_path / "x" / "b")
        getattr(os, move)(tmp_path / "x" / "b", tmp_path / "a")
        os.symlink("a", tmp_path / "s")
        sync(tmp_path)
        os.truncate(tmp_path / "a", SECTOR)
        shutil.rmtree(tmp_path / "x")
        (tmp_path / "d").write_bytes(b"d")  # with the number of a removed file, perhaps

    with DiskRecorder(tmp_path) as recorder:
        (tmp_path / "a").write_bytes(OLD)
        program(recorder)
    log = recorder.log
    assert list(log.paths()) == [
        ("make file", "a"),
        ("make folder", "x"),
        ("make file", "x/b"),
        ("make file", "x/c"),
        ("sync", "x/b"),
        ("rename", "x/b", "a"),
        ("make symlink", "s"),
        ("sync", "."),
        ("remove", "x/c"),
        ("remove", "x"),
        ("make file", "d"),
    ]
    end = next(cut for cut in log.cuts() if cut.end == len(log.operations))
    assert contents(end.restore(tmp_path.with_name("again"))) == contents(tmp_path)
