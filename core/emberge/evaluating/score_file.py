"""The file `scores.json` of an evaluation: its only writer and reader."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from emberge.errors import DataError
from emberge.evaluating.scores import (
    Comparison,
    CurvePoint,
    Estimate,
    Interval,
    ScoreCurve,
    Scores,
    Task,
    TrainingCost,
    Verdict,
)

SCORES_FILE = "scores.json"
# Names of means that differ between the file and `MEANS`, since comparisons are on groups of tasks.
_GROUP_OF_MEAN = {"task": "all"}
_MEAN_OF_GROUP = {"all": "task"}
_Fact = TypeVar("_Fact")
_VERDICT_KINDS = {"text": str, "met": bool}  # of the fields without a default
_MEANS = ("task", "type", "in", "out", "elsewhere")


# ── writing ─────────────────────────────────────────────────────────────────────────────────────


def write_scores(folder: Path, scores: Scores) -> Path:
    """Write `scores.json` into a folder and return its path."""
    pooled = scores.pooled
    content = {
        "format": 1,
        "models": [_build_model_entry(name, scores) for name in scores.models],
        "tasks": [_build_task_entry(task) for task in scores.tasks],
        "scores": scores.values,
        "intervals": {m: _select_tasks(row, scores) for m, row in scores.intervals.items()},
        "means": {m: dict.fromkeys(_MEANS) | dict(row) for m, row in scores.means.items()},
        "normalised_ranks": dict((pooled or scores).ranks),
        "mean_intervals": {m: _select_means(row, scores) for m, row in scores.intervals.items()},
        "comparisons": _build_comparison_entries(scores.comparisons),
        "forgetting": _build_comparison_entries(scores.forgetting),
        "against_linear": _build_comparison_entries(scores.against_linear),
        "arms": [_build_arm_entry(name, pooled) for name in pooled.models] if pooled else [],
        "arm_comparisons": _build_comparison_entries(pooled.comparisons) if pooled else [],
        "arm_forgetting": _build_comparison_entries(pooled.forgetting) if pooled else [],
        "arm_against_linear": _build_comparison_entries(pooled.against_linear) if pooled else [],
        "curves": [_build_curve_entry(curve) for curve in scores.curves],
        "requirements": [asdict(verdict) for verdict in scores.requirements],
    }
    path = folder / SCORES_FILE
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    return path


def _select_tasks(row: Mapping[str, Any], scores: Scores) -> dict[str, Any]:
    return {task.name: row[task.name] for task in scores.tasks if task.name in row}


def _select_means(row: Mapping[str, Any], scores: Scores) -> dict[str, Any]:
    means = dict.fromkeys(mean for of_model in scores.means.values() for mean in of_model)
    return {mean: row[mean] for mean in means if mean in row}


def _build_model_entry(name: str, scores: Scores) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "fingerprint": scores.fingerprints[name]}
    if size := scores.sizes.get(name):
        entry["size"] = size
    if cost := scores.costs.get(name):
        entry["training_cost"] = {k: v for k, v in asdict(cost).items() if v is not None}
    return entry


def _build_task_entry(task: Task) -> dict[str, Any]:
    return {**asdict(task), "languages": list(task.languages), "unit": task.unit or None}


def _build_comparison_entries(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    entries = []
    for comparison in comparisons:
        values = asdict(comparison)
        by_seed = values.pop("by_seed")
        names = {"other": values.pop("reference"), "tasks": values.pop("on")}
        names["tasks"] = _GROUP_OF_MEAN.get(names["tasks"], names["tasks"])
        seeds = {} if by_seed is None else {"by_seed": dict(by_seed)}
        entries.append({"model": values.pop("model"), **names, **values, **seeds})
    return entries


def _build_arm_entry(name: str, pooled: Scores) -> dict[str, Any]:
    def estimate(on: str) -> dict[str, Any]:
        low, high = pooled.interval(name, on) or (None, None)
        value, spread = pooled.value(name, on), pooled.spread(name, on)
        return {"mean": value, "spread": spread, "low": low, "high": high}

    return {
        "name": name,
        "models": list(pooled.members[name].values()),
        "seeds": list(pooled.members[name]),
        "scores": {task.name: estimate(task.name) for task in pooled.tasks},
        "means": {mean: estimate(mean) for mean in pooled.means[name]},
    }


def _build_curve_entry(curve: ScoreCurve) -> dict[str, Any]:
    points = [
        {
            "at": point.at,
            "models": list(point.models),
            "means": {on: asdict(estimate) for on, estimate in point.means.items()},
        }
        for point in curve.places
    ]
    return {"name": curve.name, "variable": curve.variable, "points": points}


# ── reading ─────────────────────────────────────────────────────────────────────────────────────


def read_scores(folder: Path) -> Scores:
    """Return the scores of an evaluation's folder.

    Raises:
        DataError: if the file is missing or was not written by an evaluation.
    """
    path = folder / SCORES_FILE
    try:
        return _read_all(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: these are no scores that can be read ({error!r}); run the evaluation again"
        ) from error


def _read_all(content: Mapping[str, Any]) -> Scores:
    intervals = _read_intervals(content.get("intervals"))
    for model, means in _read_intervals(content.get("mean_intervals")).items():
        intervals[model] = {**intervals.get(model, {}), **means}
    scores = Scores(
        fingerprints={m["name"]: m.get("fingerprint", "") for m in content["models"]},
        tasks=tuple(_read_task(task) for task in content["tasks"]),
        values=_select_finite(content["scores"]),
        intervals=intervals,
        means=_select_finite(content.get("means") or {}),
        comparisons=_read_comparisons(content.get("comparisons")),
        forgetting=_read_comparisons(content.get("forgetting")),
        against_linear=_read_comparisons(content.get("against_linear")),
        requirements=tuple(map(_read_verdict, content.get("requirements") or ())),
        costs={
            m["name"]: TrainingCost(**m["training_cost"])
            for m in content["models"]
            if m.get("training_cost")
        },
        curves=tuple(_read_curve(curve) for curve in content.get("curves") or ()),
        sizes={m["name"]: int(m["size"]) for m in content["models"] if m.get("size")},
    )
    arms = content.get("arms") or ()
    return replace(scores, pooled=_read_pooled(scores, arms, content)) if arms else scores


def _read_pooled(scores: Scores, arms: Sequence[Any], content: Mapping[str, Any]) -> Scores:
    """Return the scores of arms (models pooled over seeds) in the form of models' scores."""
    estimates = {
        arm["name"]: {
            on: Estimate(**estimate) for on, estimate in {**arm["scores"], **arm["means"]}.items()
        }
        for arm in arms
    }
    members = {arm["name"]: dict(zip(arm["seeds"], arm["models"], strict=True)) for arm in arms}
    pooled = replace(
        scores,
        fingerprints={arm["name"]: "" for arm in arms},
        values={arm["name"]: _select_numbers(arm["scores"], "mean") for arm in arms},
        means={arm["name"]: _select_numbers(arm["means"], "mean") for arm in arms},
        intervals={
            name: {on: estimate.interval for on, estimate in row.items() if estimate.interval}
            for name, row in estimates.items()
        },
        spreads={
            name: {
                on: estimate.spread for on, estimate in row.items() if estimate.spread is not None
            }
            for name, row in estimates.items()
        },
        members=members,
        comparisons=_read_comparisons(content.get("arm_comparisons")),
        forgetting=_read_comparisons(content.get("arm_forgetting")),
        against_linear=_read_comparisons(content.get("arm_against_linear")),
        requirements=(),
        curves=(),
    )
    return replace(
        pooled,
        costs=_map_arms_to_facts(scores.costs, pooled),
    )


def _map_arms_to_facts(facts_by_model: Mapping[str, _Fact], pooled: Scores) -> dict[str, _Fact]:
    """Map each arm to the facts of its first model."""
    first = {arm: pooled.members_of(arm)[0] for arm in pooled.models}
    return {name: facts_by_model[model] for name, model in first.items() if model in facts_by_model}


def _select_numbers(row: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, float]:
    return {on: float(entry[key]) for on, entry in row.items() if _is_finite(entry.get(key))}


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _select_finite(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    return {
        model: {on: float(v) for on, v in row.items() if _is_finite(v)}
        for model, row in scores.items()
    }


def _read_curve(entry: Mapping[str, Any]) -> ScoreCurve:
    points = tuple(
        CurvePoint(
            float(point["at"]),
            tuple(point["models"]),
            {on: Estimate(**estimate) for on, estimate in point["means"].items()},
        )
        for point in entry["points"]
    )
    return ScoreCurve(str(entry["name"]), str(entry["variable"]), points)


def _read_verdict(entry: Mapping[str, Any]) -> Verdict:
    """Return the verdict of one entry.

    Raises:
        TypeError: if a text is no text, `met` is neither true nor false, or a number is no number.
    """
    verdict = Verdict(**entry)
    for option in fields(verdict):
        kind = (
            type(option.default) if option.default is not MISSING else _VERDICT_KINDS[option.name]
        )
        value = getattr(verdict, option.name)
        is_number = kind is float and isinstance(value, int) and not isinstance(value, bool)
        if not isinstance(value, kind) and not is_number:
            raise TypeError(f"'{option.name}' of a requirement is {type(value).__name__}")
    return verdict


def _read_task(entry: Mapping[str, Any]) -> Task:
    return Task(
        name=entry["name"],
        kind=entry.get("kind") or "",
        metric=entry.get("metric") or "",
        languages=tuple(entry.get("languages") or ()),
        domain=entry.get("domain"),
        note=entry.get("note") or "",
        unit=entry.get("unit") or "",
        units=entry.get("units"),
    )


def _read_intervals(entries: Mapping[str, Any] | None) -> dict[str, dict[str, Interval]]:
    return {
        model: {on: (float(v[0]), float(v[1])) for on, v in row.items() if all(map(_is_finite, v))}
        for model, row in (entries or {}).items()
    }


def _read_comparisons(entries: Iterable[Mapping[str, Any]] | None) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(
            model=entry["model"],
            reference=entry["other"],
            on=_MEAN_OF_GROUP.get(entry["tasks"], entry["tasks"]),
            difference=float(entry["difference"]),
            low=entry.get("low"),
            high=entry.get("high"),
            by_seed=entry.get("by_seed"),
            less=bool(entry.get("less")),
        )
        for entry in entries or ()
    )
