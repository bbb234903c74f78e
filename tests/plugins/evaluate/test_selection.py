"""The choice of the best of several models, by numbers that are given."""

from __future__ import annotations

import math
from collections.abc import Mapping

from emberge import TaskInfo, TaskScore
from emberge_evaluate.selection import RankedModels, choose, value_of

VALUES = {"a": 0.70, "b": 0.72, "c": 0.69, "d": 0.71}


def names(choice: RankedModels) -> list[str]:
    return [one.name for one in choice.chosen]


def pick(values: Mapping[str, float] = VALUES, **options: float | bool | None) -> RankedModels:
    return choose(values, **{"top": 2, **options})  # type: ignore[arg-type]


def test_the_first_are_chosen_from_the_best_on() -> None:
    choice = pick()
    assert [one.name for one in choice.ranking] == ["b", "d", "a", "c"]
    assert names(choice) == ["b", "d"]
    assert choice.best.name == "b"
    assert [round(one.behind, 6) for one in choice.ranking] == [0, 1, 2, 3]


def test_of_equal_values_the_one_named_first_is_ahead() -> None:
    values = dict.fromkeys("cabd", 0.5)
    assert names(pick(values)) == ["c", "a"]
    assert names(pick(values, less=True)) == ["c", "a"]


def test_less_of_a_loss_is_better() -> None:
    choice = pick(less=True)
    assert names(choice) == ["c", "a"]
    assert [one.name for one in choice.ranking] == ["c", "a", "d", "b"]
    assert [round(one.behind, 6) for one in choice.ranking] == [0, 1, 2, 3]


def test_what_is_no_number_is_last() -> None:
    for less in (False, True):
        for bad in (math.nan, -math.inf if not less else math.inf):
            choice = pick({**VALUES, "b": bad}, less=less)
            assert choice.ranking[-1].name == "b"
            assert math.isinf(choice.ranking[-1].behind)


def test_a_value_is_a_mean_over_one_task_a_kind_all_or_kinds() -> None:
    tasks = [
        TaskInfo("find", "retrieval", "m", domain="in"),
        TaskInfo("seek", "retrieval", "m", domain="out"),
        TaskInfo("alike", "sts", "m", domain="out"),
    ]
    given = {"find": 0.2, "seek": 0.4, "alike": 0.9}
    scores = {task.name: TaskScore(task, given[task.name]) for task in tasks}
    wanted = {"find": 0.2, "retrieval": 0.3, "all": 0.5, "type": 0.6, "out": 0.65, "sts": 0.9}
    assert {on: round(value_of(tasks, scores, on), 9) for on in wanted} == wanted
