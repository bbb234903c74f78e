"""Packages are found, the garbage collector pauses, torch gets its defaults, and the process ends early."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest
from emberge.interpreter import locate_package, pause_collections, set_torch_defaults


def test_collections_pause_and_are_then_as_before() -> None:
    frozen = gc.get_freeze_count()
    with pytest.raises(ZeroDivisionError), pause_collections():
        1 / int(gc.isenabled())
    assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen
    gc.disable()
    try:
        with pause_collections(freeze=True):
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_package_has_a_folder_and_anything_else_none() -> None:
    folder = locate_package("asyncio")
    assert folder is not None
    assert (folder / "events.py").is_file()
    assert [locate_package(name) for name in ("wave", "os.path", "no_such_package")] == [None] * 3


def test_torch_gets_defaults_where_the_user_has_set_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {"OMP_WAIT_POLICY": "ACTIVE"})
    set_torch_defaults()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    assert os.environ["LRU_CACHE_CAPACITY"] == "64"


LEAVING = """
import atexit, sys, threading, time
from emberge.interpreter import leave_process
class Late:
    def __del__(self):
        print("destroyed")
late = Late()
atexit.register(print, "exit function")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    # Each part of a command's end is to be seen, so what is printed must not be flushed at once.
    environment = {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=False)


def test_threads_end_exit_functions_run_output_is_flushed_and_nothing_is_destroyed() -> None:
    done = run(f"{LEAVING}\nprint('buffered')\nleave_process(3)")
    assert (done.returncode, done.stdout) == (3, "buffered\nthread\nexit function\n")
