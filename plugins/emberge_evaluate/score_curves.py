"""Scores by a number that models were made with, such as the share of the data in a bag."""

from __future__ import annotations

import math
from collections.abc import Sequence

from emberge.engine import MEAN_OF, Place, ScoreCurve

from emberge_evaluate.comparison import Judge
from emberge_evaluate.seed_groups import Arm, Scored

__all__ = ["curves"]

# Variables of a `foreach` that only draw lots, so that models which differ by them are repetitions.
LOTS = frozenset({"seed", "draw", "part"})
# A curve needs so many places; for fewer there is the table.
PLACES = 3
# The variable of embeddings' sizes, which are a curve however few are asked for.
SIZE = "embedding size"


def curves(models: Sequence[Scored], judge: Judge, groups: Sequence[str]) -> list[ScoreCurve]:
    """Return a curve for every step whose `foreach` runs over a number of at least three values.

    Models that differ in seed or draw alone are one place. `name` is the step with its other variables. Sizes
    of embeddings are such a number too, of every model.
    """
    found: dict[tuple[str, str], dict[float, list[Scored]]] = {}
    for model in models:
        variables = {k: v for k, v in model.variables.items() if k not in LOTS}
        if model.size is not None:
            variables[SIZE] = str(model.size)
        for variable, value in variables.items():
            number = _number(value)
            if number is not None:
                others = [f"{k}={v}" for k, v in variables.items() if k != variable]
                name = ",".join([_plain_name(model), *others])
                found.setdefault((name, variable), {}).setdefault(number, []).append(model)
    return [
        ScoreCurve(name, variable, _places(places, judge, groups))
        for (name, variable), places in found.items()
        if len(places) >= (2 if variable == SIZE else PLACES)
    ]


def _plain_name(model: Scored) -> str:
    """Return the model's step without variables, or the name of a model that no step made."""
    if model.step is not None:
        return model.step.partition(".")[0]
    return model.name if model.size is None else model.name.removesuffix(f"@{model.size}")


def _places(
    places: dict[float, list[Scored]], judge: Judge, groups: Sequence[str]
) -> tuple[Place, ...]:
    found = []
    for at, models in sorted(places.items()):
        names = tuple(model.name for model in models)
        arm = Arm(" + ".join(names), {str(i): name for i, name in enumerate(names)})
        judge.arms.setdefault(arm.name, arm)
        means = {MEAN_OF.get(group, group): judge.estimate(arm.name, group) for group in groups}
        found.append(Place(at, names, means))
    return tuple(found)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
