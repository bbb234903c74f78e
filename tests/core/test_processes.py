"""Why a child process ended."""

from __future__ import annotations

import pytest
from emberge.processes import explain_end, find_error_lines


@pytest.mark.parametrize(
    ("printed", "last", "how"),
    [
        (["error: a", "", "  error: b ", "at once"], ["error: a", "error: b"], "b"),
        (["Traceback", "KeyError: 1", ""], ["KeyError: 1"], "exit code 3"),
        ([], [], "exit code 3"),
    ],
)
def test_named_errors_count_over_last_lines(printed: list[str], last: list[str], how: str) -> None:
    assert find_error_lines(printed) == last
    assert explain_end(3, printed) == how


def test_a_signal_is_named() -> None:
    assert explain_end(-9, ["half a word"]) == "killed by signal 9"
