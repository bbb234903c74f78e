"""How many ranks run, when they end, and why a child process ended."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from emberge import RecipeError, processes
from emberge.contracts import Machine
from emberge.errors import EmbergeError
from emberge.processes import choose_rank_count, explain_end, find_error_lines

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig


@pytest.mark.parametrize(
    ("code", "printed", "last", "how"),
    [
        (3, ["error: a", "", "  error: b ", "at once"], ["error: a", "error: b"], "b"),
        (3, ["Traceback", "KeyError: 1", ""], ["KeyError: 1"], "exit code 3"),
        (-9, [], [], "killed by signal 9"),
    ],
)
def test_named_errors_count_over_last_lines_and_signals_are_named(
    code: int, printed: list[str], last: list[str], how: str
) -> None:
    assert find_error_lines(printed) == last
    assert explain_end(code, printed) == how


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


def test_a_stop_frees_no_timer_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.elastic.multiprocessing import SignalException

    timers = weakref.WeakSet[threading.Event]()

    def stop(*_: object) -> None:
        timers.add(timer := threading.Event())
        raise SignalException(f"stopped with {timer}", signal.SIGINT)

    def launch(config: LaunchConfig, *_: Any) -> Any:
        assert (config.shutdown_timeout or 0) >= 3600, "a long step and its state take their time"
        return stop

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", launch)
    assert processes.run_ranks(["run"], 2) == 130
    assert len(timers) == 1


def test_a_rank_ends_when_its_starter_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(os, "getppid", iter([7, 7, 1]).__next__)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    processes._wait_for_starter(7)
    assert codes == [EmbergeError.exit_code]
