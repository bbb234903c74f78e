"""A side folder that one process works in, and the rename by which its result is there as a whole."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError
from emberge.files.atomic import publish
from emberge.files.disk_space import UnwrittenError
from emberge.files.locks import working_in


def filled(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "a").write_text("a")
    return folder


def test_a_folder_is_locked_while_it_is_worked_in_and_free_after(tmp_path: Path) -> None:
    side = tmp_path / "not" / "there"
    handles = len(os.listdir("/proc/self/fd"))
    with working_in(side):
        assert side.is_dir()
        for _ in range(2):
            with pytest.raises(CheckpointError, match=r"there: .*wait for it or stop it"):
                working_in(side).__enter__()
    with working_in(side):
        pass
    assert len(os.listdir("/proc/self/fd")) == handles


def test_a_folder_that_was_published_while_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock on what has another name by now keeps nobody out of the folder that work begins in."""
    side, real = tmp_path / "side", fcntl.flock

    def published_just_now(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        side.rename(tmp_path / "out")
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", published_just_now)
    handles = len(os.listdir("/proc/self/fd"))
    with working_in(side):
        assert side.is_dir()
        assert len(os.listdir("/proc/self/fd")) == handles + 1
        with pytest.raises(CheckpointError, match="another process"):
            working_in(side).__enter__()


def test_where_folders_cannot_be_locked_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_locks(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with working_in(tmp_path / "side"):
        assert (tmp_path / "side").is_dir()


def test_a_result_is_synced_before_and_after_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []

    def noting(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def noted(what: Any, *more: Any, **how: Any) -> None:
            real(what, *more, **how)
            path = (
                os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
            )
            done.append((call, Path(path).name))

        return noted

    for call in ("fsync", "replace"):
        monkeypatch.setattr(os, call, noting(call, getattr(os, call)))
    publish(filled(tmp_path / "parent" / "side"), tmp_path / "parent" / "out")
    assert done == [("fsync", "a"), ("fsync", "side"), ("replace", "side"), ("fsync", "parent")]
    assert (tmp_path / "parent" / "out" / "a").read_text() == "a"


def test_a_side_folder_that_cannot_be_made_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwrittenError, match=r"/file/side: the work "):
        working_in(tmp_path / "file" / "side").__enter__()
