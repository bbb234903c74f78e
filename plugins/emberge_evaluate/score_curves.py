"""Scores by a number that models were made with, such as the share of the data in a bag."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from emberge.evaluating import MEAN_OF, CurvePlace, ScoreCurve

from emberge_evaluate.comparison import Judge
from emberge_evaluate.seed_groups import Arm, Scored, variables_of

# Variables of a `foreach` that only draw lots, so that models which differ by them are repetitions.
LOTS = frozenset({"seed", "draw", "part"})
# A curve needs so many places; for fewer there is the table.
PLACES = 3
# The variable of embeddings' sizes, which are a curve however few are asked for.
SIZE = "embedding size"
# The variable of the states that a training kept.
STEP = "step"
_STATE = re.compile(rf"/{STEP}-(\d+)")


def curves(models: Sequence[Scored], judge: Judge, groups: Sequence[str]) -> list[ScoreCurve]:
    """Return a curve for every step whose `foreach` runs over a number of at least three values.

    Models that differ in seed or draw alone are one place. `name` is the step with its other variables, but
    for those that only follow the number, as the second weight of a merge follows the first. Sizes of
    embeddings are such a number too, of every model, and of the states that a training kept their steps.
    """
    found: dict[tuple[str, str], dict[float, list[Scored]]] = {}
    for step, several in _by_step(models).items():
        rows = [_variables(model) for model in several]
        for variable in _axes(rows):
            for model, row in zip(several, rows, strict=True):
                number = _number(row.get(variable, ""))
                if number is not None:
                    others = [f"{k}={row[k]}" for k in _beside(variable, row, rows)]
                    places = found.setdefault((",".join([step, *others]), variable), {})
                    places.setdefault(number, []).append(model)
    return [
        ScoreCurve(name, variable, _places(places, judge, groups))
        for (name, variable), places in found.items()
        if len(places) >= (2 if variable == SIZE else PLACES)
    ]


def _by_step(models: Sequence[Scored]) -> dict[str, list[Scored]]:
    found: dict[str, list[Scored]] = {}
    for model in models:
        found.setdefault(_plain_name(model), []).append(model)
    return found


def _variables(model: Scored) -> dict[str, str]:
    """Return the variables of a model's step but those that draw lots, its size and a state's step."""
    found = {k: v for k, v in variables_of(model.reference.step or "").items() if k not in LOTS}
    state = _STATE.search(model.name) if model.reference.part is not None else None
    if state is not None:
        found[STEP] = state[1]
    return found if model.size is None else {**found, SIZE: str(model.size)}


def _axes(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the variables that are numbers; of those that follow each other the first."""
    found: list[str] = []
    for name in dict.fromkeys(name for row in rows for name in row):
        numbers = any(_number(row.get(name, "")) is not None for row in rows)
        again = (_follows(name, other, rows) and _follows(other, name, rows) for other in found)
        if numbers and not any(again):
            found.append(name)
    return found


def _beside(axis: str, row: Mapping[str, str], rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the variables of a row that its number alone does not give."""
    for name in row:
        if name != axis and not _follows(name, axis, rows):
            yield name


def _follows(name: str, axis: str, rows: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a variable changes over the rows, and one of the axis' values never has two of its."""
    pairs = {(row.get(axis), row.get(name)) for row in rows}
    changes = len({value for _, value in pairs}) > 1
    return changes and len(pairs) == len({at for at, _ in pairs})


def _plain_name(model: Scored) -> str:
    """Return the model's step without variables, or the name of a model that no step made."""
    on = "" if model.index is None else f" on {model.index}"
    if model.reference.step is not None:
        return model.reference.step.partition(".")[0] + on
    name = model.name.removesuffix(on)
    return (name if model.size is None else name.removesuffix(f"@{model.size}")) + on


def _places(
    places: dict[float, list[Scored]], judge: Judge, groups: Sequence[str]
) -> tuple[CurvePlace, ...]:
    found = []
    for at, models in sorted(places.items()):
        names = tuple(model.name for model in models)
        arm = Arm(" + ".join(names), {str(i): name for i, name in enumerate(names)})
        judge.arms.setdefault(arm.name, arm)
        means = {MEAN_OF.get(group, group): judge.estimate(arm.name, group) for group in groups}
        found.append(CurvePlace(at, names, means))
    return tuple(found)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
