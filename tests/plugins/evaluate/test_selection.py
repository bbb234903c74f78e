"""The ranks of several models, by numbers that are given."""

from __future__ import annotations

import math

from emberge_evaluate.selection import rank_models

VALUES = {"a": 0.70, "b": 0.72, "c": 0.69, "d": 0.71}


def names(values: dict[str, float], *, less: bool = False) -> str:
    return "".join(ranked.name for ranked in rank_models(values, less=less))


def test_models_are_ranked_from_the_best_or_the_least() -> None:
    assert (names(VALUES), names(VALUES, less=True)) == ("bdac", "cadb")
    for less in (False, True):
        ranking = rank_models(VALUES, less=less)
        assert [round(one.behind, 6) for one in ranking] == [0, 1, 2, 3]


def test_of_equal_values_the_one_named_first_is_ahead() -> None:
    values = dict.fromkeys("cabd", 0.5)
    assert names(values) == names(values, less=True) == "cabd"


def test_what_is_no_number_is_last() -> None:
    for less in (False, True):
        for bad in (math.nan, -math.inf if not less else math.inf):
            *_, last = rank_models({**VALUES, "b": bad}, less=less)
            assert last.name == "b"
            assert math.isinf(last.behind)
