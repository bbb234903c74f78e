"""How many ranks run, and why a child process ended."""

from __future__ import annotations

import pytest
from emberge import RecipeError
from emberge.contracts import Machine
from emberge.processes import choose_rank_count, explain_end, find_error_lines


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


NO_START = "start by torchrun or accelerate launch, or use --ranks"


@pytest.mark.parametrize(
    ("environment", "ranks", "device_count", "outcome"),
    [
        ({}, None, 0, 1),
        ({}, 3, 0, 3),
        ({}, 2, 2, 2),
        ({}, 3, 2, "3 ranks on this machine, which has 2 GPUs for them; take as many"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, None, 2, 2),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, 4, 2, 4),
        ({"WORLD_SIZE": "2"}, 3, 0, "--ranks 3, and the launcher started 2; leave --ranks out"),
        (
            {"RANK": "2", "WORLD_SIZE": "2"},
            None,
            0,
            f"RANK=2 and WORLD_SIZE=2 are no .*; {NO_START}",
        ),
        ({"RANK": "x"}, None, 0, f"RANK=x and WORLD_SIZE=1 are no .*; {NO_START}"),
        ({"LOCAL_WORLD_SIZE": "x"}, 2, 0, f"LOCAL_WORLD_SIZE=x is no number of ranks; {NO_START}"),
    ],
)
def test_the_launcher_or_the_option_says_how_many_ranks_run(
    environment: dict[str, str],
    ranks: int | None,
    device_count: int,
    outcome: int | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    machine = Machine(devices=tuple(f"cuda:{i}" for i in range(device_count)) or ("cpu",))
    if isinstance(outcome, int):
        assert choose_rank_count(ranks, machine) == outcome
        return
    with pytest.raises(RecipeError, match=outcome):
        choose_rank_count(ranks, machine)
