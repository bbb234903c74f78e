"""Locks that keep other processes out of an OUT, a cache and a work folder."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from emberge import CheckpointError
from emberge.errors import OutInUseError, UnwrittenError
from emberge.files import FileLock, working_in


def test_the_holder_of_a_lock_is_named_while_it_is_locked(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert FileLock(lock).find_holder() is None, "no run has ever been here"
    lock.write_text("{" * 500)  # as a run that was killed left it
    with FileLock(lock).lock():
        holder = FileLock(lock).find_holder()
        assert holder is not None
        assert holder.startswith(f"process {os.getpid()} on {socket.gethostname()}, since 20")
        with pytest.raises(OutInUseError) as caught:
            FileLock(lock).lock(patience=0).__enter__()
        place, pid = str(tmp_path), f"process {os.getpid()} on {socket.gethostname()}"
        assert place in str(caught.value)
        assert pid in str(caught.value)
        assert "another folder" in str(caught.value)
        assert caught.value.exit_code == 2
    assert FileLock(lock).find_holder() is None
    assert lock.read_text() == ""
    with FileLock(lock).lock(patience=0):
        pass


def test_looking_at_a_lock_does_not_keep_a_run_from_taking_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert FileLock(lock).find_holder() == "another process"
        with pytest.raises(OutInUseError, match="in use by another process"):
            FileLock(lock).lock(patience=0).__enter__()
    with lock.open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert FileLock(lock).find_holder() is None, "several may look at once"
        threading.Timer(0.1, lambda: fcntl.flock(looking, fcntl.LOCK_UN)).start()
        with FileLock(lock).lock(patience=60):
            assert FileLock(lock).find_holder() is not None


def test_lock_when_free_waits_until_the_holder_releases_the_lock(tmp_path: Path) -> None:
    lock, order, waits = tmp_path / "lock", [], threading.Event()

    def second() -> None:
        waits.set()
        with FileLock(lock).lock_when_free():
            order.append("second")

    thread = threading.Thread(target=second)
    with FileLock(lock).lock_when_free():
        thread.start()
        waits.wait()
        time.sleep(0.1)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    with FileLock(lock).lock_when_free(), lock.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_work_folder_is_locked_inside_the_block(tmp_path: Path) -> None:
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


def test_a_work_folder_that_was_renamed_while_waiting_is_created_again(
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


def test_a_work_folder_without_locks_is_used_and_an_unwritable_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwrittenError, match=r"/file/side: the work "):
        working_in(tmp_path / "file" / "side").__enter__()

    def without_locks(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with working_in(tmp_path / "side"):
        assert (tmp_path / "side").is_dir()


@pytest.mark.parametrize(
    ("error", "cause", "stays"),
    [
        (CheckpointError("w: holds NaN"), None, False),
        (CheckpointError("w: is missing"), FileNotFoundError(), False),
        (UnwrittenError("full"), OSError(errno.ENOSPC, "full"), True),
        (CheckpointError("no answer"), ConnectionResetError(), True),
        (KeyboardInterrupt(), None, True),
        (MemoryError(), None, True),
    ],
)
def test_a_work_folder_stays_only_after_a_temporary_error(
    tmp_path: Path, error: BaseException, cause: OSError | None, stays: bool
) -> None:
    def fails() -> None:
        with working_in(tmp_path / "side"):
            (tmp_path / "side" / "done").touch()
            raise error from cause

    with pytest.raises(type(error)):
        fails()
    assert (tmp_path / "side" / "done").exists() is stays
