"""What an evaluation leaves in `scores.json`: scores, means, how sure they are, what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from emberge import Artifact, Model, TaskInfo, TaskScore
from emberge.engine import GROUP_OF, LABEL_OF, means, parts

from emberge_evaluate.comparison import Judge
from emberge_evaluate.requirements import Requirement
from emberge_evaluate.score_curves import curves
from emberge_evaluate.seed_groups import Arm, Scored, arms_of

__all__ = ["result_of"]

Scores = Mapping[str, Mapping[str, TaskScore]]


def result_of(
    models: Mapping[str, tuple[Scored, Model]],
    tasks: Sequence[TaskInfo],
    scores: Scores,
    require: Sequence[Requirement],
    *,
    resamples: int,
    seed: int,
) -> dict[str, Any]:
    """The whole result, as JSON. `models` and `scores` are by the name that tables call a model."""
    arms = arms_of(scored for scored, _ in models.values())
    judge = Judge(tasks, scores, resamples=resamples, seed=seed, arms=arms)
    shares = {m: {t.name: mine[t.name].score for t in tasks} for m, mine in scores.items()}
    groups = [label for label in ("all", "type", "in", "out") if parts(tasks, label)]
    several = any(len(arm.models) > 1 for arm in arms)
    return {
        "format": 1,
        "models": _models({name: model for name, (_, model) in models.items()}),
        "tasks": [_task(task, scores) for task in tasks],
        "scores": shares,
        "intervals": _intervals(judge, list(models), {task.name: task.name for task in tasks}),
        "means": {model: means(tasks, shares[model]) for model in models},
        "mean_intervals": _intervals(judge, list(models), {LABEL_OF[g]: g for g in groups}),
        "comparisons": _comparisons(judge, list(models), tasks, groups),
        "arms": [_arm(arm, judge, tasks, groups) for arm in arms] if several else [],
        "arm_comparisons": (
            _comparisons(judge, [arm.name for arm in arms], tasks, groups) if several else []
        ),
        "curves": curves([scored for scored, _ in models.values()], judge, groups),
        "requirements": list(_judged(require, models, arms, judge)),
    }


def _models(models: Mapping[str, Model]) -> list[dict[str, Any]]:
    """The models and what each cost to train, all against one training on the most data that any had."""
    costs = {name: _cost(model.artifact) for name, model in models.items()}
    of = max((int(cost["of"]) for cost in costs.values() if cost and "of" in cost), default=0)
    told = []
    for name, model in models.items():
        known: dict[str, Any] = {"name": name, "fingerprint": model.fingerprint}
        if cost := costs[name]:
            if of and "rows" in cost:
                cost |= {"times": round(cost["rows"] / of, 6), "of": of}
            known["training_cost"] = cost
        told.append(known)
    return told


def _cost(artifact: Artifact | None) -> dict[str, Any] | None:
    """How many trainings on all its data a model amounts to: a merge says it, a training's rows tell it."""
    details = artifact.details if artifact is not None else {}
    told = details.get("training_cost")
    if isinstance(told, Mapping) and isinstance(told.get("times"), int | float):
        kept = {name: told.get(name) for name in ("times", "rows", "of")}
        return {name: value for name, value in kept.items() if value is not None}
    used = details.get("datasets")
    if not isinstance(used, Mapping) or not used:
        return None
    rows, of = (sum(int(one[key]) for one in used.values()) for key in ("rows", "of"))
    return {"times": round(rows / of, 6), "rows": rows, "of": of} if of else None


def _task(task: TaskInfo, scores: Scores) -> dict[str, Any]:
    """A task as it stands in the result, with what a resampling drew."""
    units = next(iter(scores.values()))[task.name].units
    plain = {key: value for key, value in asdict(task).items() if key != "fingerprint"}
    return {
        **plain,
        "languages": list(task.languages),
        "unit": units.unit if units else None,
        "units": len(units.values) if units else None,
    }


def _intervals(
    judge: Judge, models: Sequence[str], on: Mapping[str, str]
) -> dict[str, dict[str, tuple[float, float]]]:
    """By model and key of `on`, the interval of its score on what the key stands for, where there is one."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for model in models:
        estimates = {key: judge.estimate(model, label) for key, label in on.items()}
        found[model] = {
            key: (one.low, one.high)
            for key, one in estimates.items()
            if one.low is not None and one.high is not None
        }
    return found


def _comparisons(
    judge: Judge, names: Sequence[str], tasks: Sequence[TaskInfo], groups: Sequence[str]
) -> list[dict[str, Any]]:
    """Every other one against the first: over groups of tasks, then task by task."""
    labels = [*groups, *(task.name for task in tasks)]
    return [judge.compare(name, names[0], on).plain() for name in names[1:] for on in labels]


def _arm(
    arm: Arm, judge: Judge, tasks: Sequence[TaskInfo], groups: Sequence[str]
) -> dict[str, Any]:
    return {
        "name": arm.name,
        "models": list(arm.members),
        "seeds": list(arm.models),
        "scores": {task.name: asdict(judge.estimate(arm.name, task.name)) for task in tasks},
        "means": {LABEL_OF[g]: asdict(judge.estimate(arm.name, g)) for g in groups},
    }


def _judged(
    require: Sequence[Requirement],
    models: Mapping[str, tuple[Scored, Model]],
    arms: Sequence[Arm],
    judge: Judge,
) -> Iterator[dict[str, Any]]:
    """Every demand once: a recipe's demand of each seed of an arm is one of the arm."""
    arm_of = {model: arm.name for arm in arms for model in arm.members}
    by_reference: dict[str, list[str]] = {}
    for name, (scored, _) in models.items():
        known = by_reference.setdefault(scored.reference.text, [])
        known += [] if arm_of[name] in known else [arm_of[name]]
    done = set()
    for requirement in require:
        on = GROUP_OF.get(requirement.tasks, requirement.tasks)
        for demand, reference in requirement.demands():
            for model in by_reference[requirement.model.text]:
                for other in by_reference[reference.text]:
                    said = (model, other, demand, on, requirement.margin, requirement.confidence)
                    if model != other and said not in done:
                        done.add(said)
                        yield judge.judge(requirement, demand, model, other, on)
