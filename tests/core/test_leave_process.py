"""A command ends its process without destroying objects one by one, and loses nothing by it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_a_command_called_with_words_returns_its_code() -> None:
    done = run(
        f"{LEAVING}\nfrom emberge.cli.main import main\nprint('code', main(['show', 'no such']))"
    )
    assert "code 2\n" in done.stdout
