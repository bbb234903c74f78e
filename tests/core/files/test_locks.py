"""A folder that one process works in, until its result is published or the process ends."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from emberge import CheckpointError
from emberge.files.disk_space import UnwrittenError
from emberge.files.locks import working_in


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


def test_a_side_folder_that_cannot_be_made_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwrittenError, match=r"/file/side: the work "):
        working_in(tmp_path / "file" / "side").__enter__()
