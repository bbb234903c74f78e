"""The scores of a run, read back from `scores.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from emberge.errors import DataError
from emberge.evaluating.scores import (
    Comparison,
    Interval,
    Place,
    Requirement,
    ScoreCurve,
    Scores,
    Task,
)

__all__ = ["read_scores"]

FILE = "scores.json"
# How an evaluation names the groups of tasks that it compares models on.
_GROUPS = {"all": "task"}


def read_scores(folder: Path) -> Scores:
    """The scores of an evaluation's folder.

    Raises:
        DataError: when the file is missing or is not what an evaluation writes.
    """
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return _scores(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: these are no scores that can be read ({error!r}); run the evaluation again"
        ) from error


def _scores(found: Mapping[str, Any]) -> Scores:
    values = {
        model: {task: float(v) for task, v in row.items() if _finite(v)}
        for model, row in found["scores"].items()
    }
    tasks, around = found["tasks"], _by_model(found.get("intervals"))
    for model, means in _by_model(found.get("mean_intervals")).items():
        around[model] = {**around.get(model, {}), **means}
    scores = Scores(
        fingerprints={m["name"]: m.get("fingerprint", "") for m in found["models"]},
        tasks=tuple(_task(task) for task in tasks),
        values=values,
        intervals=around,
        means={
            model: {mean: float(v) for mean, v in row.items() if _finite(v)}
            for model, row in (found.get("means") or {}).items()
        },
        comparisons=tuple(_comparison(c) for c in found.get("comparisons") or ()),
        requirements=tuple(_requirement(r) for r in found.get("requirements") or ()),
        confidence=next((float(c["confidence"]) for c in found.get("comparisons") or ()), 0.95),
        costs={
            m["name"]: float(m["training_cost"]["times"])
            for m in found["models"]
            if m.get("training_cost")
        },
        curves=tuple(_curve(curve) for curve in found.get("curves") or ()),
    )
    arms = found.get("arms") or ()
    return replace(scores, pooled=_pooled(scores, arms, found)) if arms else scores


def _pooled(scores: Scores, arms: Sequence[Any], found: Mapping[str, Any]) -> Scores:
    """The arms as if they were models."""
    estimates = {arm["name"]: {**arm["scores"], **arm["means"]} for arm in arms}
    return replace(
        scores,
        fingerprints={arm["name"]: "" for arm in arms},
        values={arm["name"]: _kept(arm["scores"], "mean") for arm in arms},
        means={arm["name"]: _kept(arm["means"], "mean") for arm in arms},
        intervals={
            name: {on: pair for on, one in row.items() if (pair := _ends(one))}
            for name, row in estimates.items()
        },
        spreads={name: _kept(row, "spread") for name, row in estimates.items()},
        members={arm["name"]: tuple(arm["models"]) for arm in arms},
        comparisons=tuple(_comparison(c) for c in found.get("arm_comparisons") or ()),
        costs={
            arm["name"]: scores.costs[arm["models"][0]]
            for arm in arms
            if arm["models"][0] in scores.costs
        },
    )


def _kept(row: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, float]:
    return {on: float(one[key]) for on, one in row.items() if _finite(one.get(key))}


def _ends(one: Mapping[str, Any]) -> Interval | None:
    return _interval([one.get("low"), one.get("high")])


def _curve(found: Mapping[str, Any]) -> ScoreCurve:
    places = tuple(
        Place(
            float(point["at"]),
            tuple(point["models"]),
            _kept(point["means"], "mean"),
            {on: pair for on, one in point["means"].items() if (pair := _ends(one))},
        )
        for point in found["points"]
    )
    return ScoreCurve(str(found["name"]), str(found["variable"]), places)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _task(found: Mapping[str, Any]) -> Task:
    return Task(
        name=found["name"],
        kind=found.get("kind") or "",
        metric=found.get("metric") or "",
        languages=tuple(found.get("languages") or ()),
        domain=found.get("domain"),
        note=found.get("note") or "",
        unit=found.get("unit") or "",
        units=found.get("units"),
    )


def _interval(found: Any) -> Interval | None:
    if not isinstance(found, Sequence) or len(found) != 2 or not all(map(_finite, found)):
        return None
    return float(found[0]), float(found[1])


def _by_model(found: Mapping[str, Any] | None) -> dict[str, dict[str, Interval]]:
    return {
        model: {on: pair for on, v in row.items() if (pair := _interval(v)) is not None}
        for model, row in (found or {}).items()
    }


def _comparison(found: Mapping[str, Any]) -> Comparison:
    return Comparison(
        model=found["model"],
        reference=found["other"],
        on=_GROUPS.get(found["tasks"], found["tasks"]),
        difference=float(found["difference"]),
        interval=_ends(found),
        apart=tuple(float(value) for value in (found.get("by_seed") or {}).values()),
    )


def _requirement(found: Mapping[str, Any]) -> Requirement:
    return Requirement(str(found["text"]), bool(found["met"]))
