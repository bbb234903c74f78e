"""Child processes that end with their parent."""

from __future__ import annotations

import subprocess
import sys

import pytest
from emberge.processes import describe_end, last_lines

CODE = (
    "import time; from emberge.processes import read_call; "
    "print(read_call(), flush=True); time.sleep(600)"
)


def _child() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def test_a_child_takes_one_line_and_ends_when_its_parent_lets_go() -> None:
    with _child() as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"call\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"b'call\\n'\n"
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(60) != 0


def test_a_child_whose_parent_ended_too_early_has_no_call() -> None:
    with _child() as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"half a li")
        child.stdin.close()
        assert child.stdout.readline() == b"None\n"
        child.kill()


@pytest.mark.parametrize(
    ("printed", "last", "how"),
    [
        (["error: a", "", "  error: b ", "at once"], ["error: a", "error: b"], "b"),
        (["Traceback", "KeyError: 1", ""], ["KeyError: 1"], "exit code 3"),
        ([], [], "exit code 3"),
    ],
)
def test_named_errors_count_over_last_lines(printed: list[str], last: list[str], how: str) -> None:
    assert last_lines(printed) == last
    assert describe_end(3, printed) == how


def test_a_signal_is_named() -> None:
    assert describe_end(-9, ["half a word"]) == "killed by signal 9"
