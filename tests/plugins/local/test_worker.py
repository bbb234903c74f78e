"""Processes of steps end with their parent, and only their last event ends the step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from emberge_local import pool_launcher

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


def test_an_event_of_an_unknown_name_is_no_end_of_the_step(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text('{"event": "resized", "seconds": 1}\n')
    attempt = pool_launcher._Attempt(step=None, fingerprint="")  # type: ignore[arg-type]
    pool_launcher._record_events(None, attempt, events)  # type: ignore[arg-type]
    assert attempt.outcome is None
