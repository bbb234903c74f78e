"""Processes of steps end with their parent."""

from __future__ import annotations

import subprocess
import sys

CODE = (
    "import time; from emberge_local.worker import read_call; "
    "print(read_call(), flush=True); time.sleep(600)"
)


def _child() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def test_a_process_reads_one_line_and_ends_with_its_parent() -> None:
    with _child() as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"call\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"b'call\\n'\n"
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(60) != 0


def test_a_process_whose_parent_ended_early_has_no_call() -> None:
    with _child() as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"half a li")
        child.stdin.close()
        assert child.stdout.readline() == b"None\n"
        child.kill()
