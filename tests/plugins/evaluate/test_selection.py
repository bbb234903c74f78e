"""The ranks of several models, by numbers that are given."""

from __future__ import annotations

import math

from emberge_evaluate.selection import rank_models

VALUES = {"a": 0.70, "b": 0.72, "c": 0.69, "d": 0.71}


def test_what_is_no_number_is_last() -> None:
    for less in (False, True):
        for bad in (math.nan, -math.inf if not less else math.inf):
            *_, last = rank_models({**VALUES, "b": bad}, less=less)
            assert last.name == "b"
            assert math.isinf(last.behind)
