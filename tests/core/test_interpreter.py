"""Imports and checks pause the garbage collector, and leave it as it was."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emberge.cli.main import main
from emberge.interpreter import pause_collections, return_freed_memory
from emberge.recipes import CheckReport


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


def test_a_check_collects_no_garbage_of_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled: list[bool] = []

    def checked(*_: object, **__: object) -> CheckReport:
        enabled.append(gc.isenabled())
        return CheckReport()

    monkeypatch.setattr("emberge.recipes.check_recipe", checked)
    (tmp_path / "r.yaml").write_text("steps: {a: {merge: {models: [./a, ./b], strategy: linear}}}")
    assert main(["check", str(tmp_path / "r.yaml")]) == 0
    assert enabled == [False]
    assert gc.isenabled()


SIZE = 64 << 10


def resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel names no RssAnon")


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="only glibc keeps freed memory between blocks",
)
def test_holes_between_living_blocks_are_given_back() -> None:
    blocks = [np.ones(SIZE, np.uint8) for _ in range(2000)]
    kept = blocks[::20]
    freed = (len(blocks) - len(kept)) * SIZE
    del blocks
    before = resident()
    return_freed_memory()
    assert before - resident() > freed // 2
    assert all(block.all() for block in kept)


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


def run(code: str, stdout: str | int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    # Each part of a command's end is to be seen, so what is printed must not be flushed at once.
    command = [sys.executable, "-c", code]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    if isinstance(stdout, int):
        return subprocess.run(command, stdout=stdout, env=environment, text=True, check=False)
    with Path(stdout).open("w") as file:
        return subprocess.run(
            command, stdout=file, stderr=subprocess.PIPE, env=environment, text=True, check=False
        )


def test_threads_end_exit_functions_run_output_is_flushed_and_nothing_is_destroyed() -> None:
    done = run(f"{LEAVING}\nprint('buffered')\nleave_process(3)")
    assert (done.returncode, done.stdout) == (3, "buffered\nthread\nexit function\n")


def test_output_that_cannot_be_written_is_an_error() -> None:
    done = run(f"{LEAVING}\nprint('buffered')\nleave_process(0)", stdout="/dev/full")
    assert done.returncode == 120  # Python's own code for it
    assert "No space left" in done.stderr


def test_a_command_leaves_so() -> None:
    done = run(
        f"{LEAVING}\nfrom emberge.cli.main import main\nsys.argv = ['emberge', 'show', 'no such']\n"
        "main()\nprint('not reached')"
    )
    assert done.returncode == 2
    assert done.stdout == "thread\nexit function\n"
