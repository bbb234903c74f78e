"""Scores by a number that models were made with, such as the share of the data in a bag."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from emberge.engine import LABEL_OF

from emberge_evaluate.comparison import Judge
from emberge_evaluate.seed_groups import Arm, Scored

__all__ = ["curves"]

# Variables of a `foreach` that only draw lots, so that models which differ by them are repetitions.
LOTS = frozenset({"seed", "draw", "part"})
# A curve needs so many places; fewer are told by the table.
PLACES = 3


def curves(models: Sequence[Scored], judge: Judge, groups: Sequence[str]) -> list[dict[str, Any]]:
    """Every step whose `foreach` runs over a number of at least three values, and the scores at each.

    Models that differ in seed or draw alone are one place. `name` is the step with what else tells it apart.
    """
    found: dict[tuple[str, str], dict[float, list[Scored]]] = {}
    for model in models:
        variables = {k: v for k, v in model.variables.items() if k not in LOTS}
        for variable, value in variables.items():
            number = _number(value)
            if number is not None:
                others = [f"{k}={v}" for k, v in variables.items() if k != variable]
                name = ",".join([str(model.step).partition(".")[0], *others])
                found.setdefault((name, variable), {}).setdefault(number, []).append(model)
    return [
        {"name": name, "variable": variable, "points": _points(places, judge, groups)}
        for (name, variable), places in found.items()
        if len(places) >= PLACES
    ]


def _points(
    places: dict[float, list[Scored]], judge: Judge, groups: Sequence[str]
) -> list[dict[str, Any]]:
    points = []
    for at, models in sorted(places.items()):
        names = [model.name for model in models]
        arm = Arm(" + ".join(names), {str(i): name for i, name in enumerate(names)})
        judge.arms.setdefault(arm.name, arm)
        means = {LABEL_OF[group]: asdict(judge.estimate(arm.name, group)) for group in groups}
        points.append({"at": at, "models": names, "means": means})
    return points


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
