"""Scores of an evaluation with means, intervals, comparisons, costs, curves and requirements."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from emberge import Artifact, CheckpointError, Model, ModelRef, TaskInfo, TaskScore
from emberge.evaluating import (
    GROUP_OF,
    MEAN_OF,
    Comparison,
    CurvePoint,
    ScoreCurve,
    Scores,
    Task,
    TrainingCost,
    Verdict,
    groups_with_means,
)
from emberge.model_folder import Checkpoint, count_parameters

from emberge_evaluate.comparison import Judge
from emberge_evaluate.forgetting import bases_of, forgetting, forgetting_group
from emberge_evaluate.requirements import Requirement
from emberge_evaluate.score_columns import ScoredModels
from emberge_evaluate.seed_groups import Arm, Scored, find_arms, read_variables
from emberge_evaluate.verdict_texts import describe_size

TaskScores = Mapping[str, Mapping[str, TaskScore]]
# Variables of a `foreach` that only change random draws: models that differ by them are repetitions.
CHANCE_VARIABLES = frozenset({"seed", "draw", "part"})
# Least number of points of a curve; fewer points are only in the table.
PLACES = 3
# The variable of the sizes of embeddings, which have a curve even with fewer points.
SIZE = "embedding size"
# The variable of the checkpoints that a training kept.
STEP = "step"
_STATE = re.compile(rf"/{STEP}-(\d+)")


def scores_of(
    columns: ScoredModels,
    require: Sequence[Requirement],
    *,
    base: ModelRef | None = None,
    compare: Sequence[tuple[ModelRef, ModelRef]] = (),
    resamples: int,
    seed: int,
) -> Scores:
    """Build the full result from models' scores; without `base`, the base is read from their artifacts.

    `compare` are pairs of models whose differences are given beside those from the first model.
    """
    models, tasks, scores = columns.models, columns.tasks, columns.scores
    arms = find_arms(scored for scored, _ in models.values())
    judge = Judge(tasks, scores, resamples=resamples, seed=seed, arms=arms)
    pairs = list(_pair_models(compare, models))
    bases, elsewhere = bases_of(models, base), forgetting_group(tasks)
    costs = _list_costs({name: model for name, (_, model) in models.items()})
    sizes = {name: one.size for name, (one, _) in models.items() if one.size is not None}
    result = replace(
        _score_arms(list(models), pairs, judge),
        fingerprints={name: model.fingerprint for name, (_, model) in models.items()},
        values={m: {t.name: mine[t.name].score for t in tasks} for m, mine in scores.items()},
        forgetting=tuple(forgetting(judge, bases, elsewhere)),
        requirements=(
            *_judge_demands(require, models, judge),
            *_judge_forgetting(require, models, judge, bases, elsewhere),
            *_judge_sizes(require, models),
        ),
        costs=costs,
        curves=tuple(curves([one for one, _ in models.values()], judge, groups_with_means(tasks))),
        sizes=sizes,
    )
    if all(len(arm.models) == 1 for arm in arms):
        return result
    arm_pairs = [(judge.arm_of[model], judge.arm_of[other]) for model, other in pairs]
    arm_bases = {judge.arm_of[name]: judge.arm_of[base] for name, base in bases.items()}
    pooled = replace(
        _score_arms([arm.name for arm in arms], arm_pairs, judge),
        members={arm.name: dict(arm.models) for arm in arms},
        forgetting=tuple(forgetting(judge, arm_bases, elsewhere)),
        costs={arm.name: costs[arm.members[0]] for arm in arms if arm.members[0] in costs},
        sizes=sizes,
    )
    return replace(result, pooled=pooled)


def _score_arms(names: Sequence[str], pairs: Sequence[tuple[str, str]], judge: Judge) -> Scores:
    """Return the estimates and comparisons of models or arms; `pairs` are further ones to compare."""
    tasks, groups = judge.tasks, groups_with_means(judge.tasks)
    values = {name: {t.name: judge.estimate(name, t.name) for t in tasks} for name in names}
    means = {
        name: {MEAN_OF.get(group, group): judge.estimate(name, group) for group in groups}
        for name in names
    }
    rows = {name: {**values[name], **means[name]}.items() for name in names}
    spreads = {
        name: {on: one.spread for on, one in row if one.spread is not None}
        for name, row in rows.items()
    }
    return Scores(
        fingerprints=dict.fromkeys(names, ""),
        tasks=tuple(_store_task(task, judge.scores) for task in tasks),
        values={name: {on: one.mean for on, one in row.items()} for name, row in values.items()},
        means={name: {on: one.mean for on, one in row.items()} for name, row in means.items()},
        intervals={
            name: {on: one.interval for on, one in row if one.interval}
            for name, row in rows.items()
        },
        spreads={name: row for name, row in spreads.items() if row},
        comparisons=_compare_models(judge, names, pairs, tasks, groups),
    )


def _list_costs(models: Mapping[str, Model]) -> dict[str, TrainingCost]:
    """Return each model's training cost in units of one training on the largest data of any model."""
    costs = {name: _find_cost(model.artifact) for name, model in models.items()}
    most = max((cost.of for cost in costs.values() if cost and cost.of), default=0)
    return {
        name: TrainingCost(round(cost.rows / most, 6), cost.rows, most)
        if most and cost.rows is not None
        else cost
        for name, cost in costs.items()
        if cost is not None
    }


def _find_cost(artifact: Artifact | None) -> TrainingCost | None:
    """Return a model's cost in trainings on all its data, stated by a merge or counted from rows."""
    details = artifact.details if artifact is not None else {}
    stated_cost = details.get("training_cost")
    if isinstance(stated_cost, Mapping) and isinstance(stated_cost.get("times"), int | float):
        of = stated_cost.get("of")
        return TrainingCost(
            stated_cost["times"], stated_cost.get("rows"), None if of is None else int(of)
        )
    used_rows = details.get("datasets")
    if not isinstance(used_rows, Mapping) or not used_rows:
        return None
    rows, of = (sum(int(counts[key]) for counts in used_rows.values()) for key in ("rows", "of"))
    return TrainingCost(round(rows / of, 6), rows, of) if of else None


def _store_task(task: TaskInfo, scores: TaskScores) -> Task:
    """Return the task as it is stored, with its units for resampling."""
    units = next(iter(scores.values()))[task.name].units
    return Task(
        name=task.name,
        kind=task.kind,
        metric=task.metric,
        languages=task.languages,
        domain=task.domain,
        note=task.note,
        unit=units.unit if units else "",
        units=len(units.values) if units else None,
    )


def _compare_models(
    judge: Judge,
    names: Sequence[str],
    pairs: Iterable[tuple[str, str]],
    tasks: Sequence[TaskInfo],
    groups: Sequence[str],
) -> tuple[Comparison, ...]:
    """Return the comparison of each model with the first one, then those of the pairs.

    Each is over groups of tasks, then for each task.
    """
    groups_and_tasks = [*groups, *(task.name for task in tasks)]
    all_pairs = dict.fromkeys([*((name, names[0]) for name in names[1:]), *pairs])
    return tuple(
        judge.compare(model, other, on)
        for model, other in all_pairs
        if model != other
        for on in groups_and_tasks
    )


def _pair_models(
    compare: Iterable[tuple[ModelRef, ModelRef]], models: Mapping[str, tuple[Scored, Model]]
) -> Iterator[tuple[str, str]]:
    """Yield the names of each pair of models; a pair at several sizes or seeds is several pairs."""
    keys = {
        name: (scored.reference.text, (scored.size, scored.drawn))
        for name, (scored, _) in models.items()
    }
    for reference, other in compare:
        for name, other_name in itertools.product(keys, repeat=2):
            (text, column), (other_text, other_column) = keys[name], keys[other_name]
            if (text, other_text) == (reference.text, other.text) and column == other_column:
                yield name, other_name


def _judge_demands(
    require: Sequence[Requirement], models: Mapping[str, tuple[Scored, Model]], judge: Judge
) -> Iterator[Verdict]:
    """Yield one verdict per demand and arm; demands on the seeds of one arm are joined.

    If embeddings are scored at several sizes, each size has a verdict.
    """
    by_reference: dict[tuple[str, int | None], dict[str, None]] = {}
    for name, (scored, _) in models.items():
        arms = by_reference.setdefault((scored.reference.text, scored.size), {})
        arms[judge.arm_of[name]] = None
    sizes = dict.fromkeys(scored.size for scored, _ in models.values())
    seen_demands = set()
    for requirement in require:
        on = GROUP_OF.get(requirement.tasks, requirement.tasks)
        for size, (demand, reference) in itertools.product(sizes, requirement.demands()):
            rivals = by_reference[reference.text, size]
            for model, rival in itertools.product(
                by_reference[str(requirement.model), size], rivals
            ):
                amount = requirement.keeps if demand == "keeps" else requirement.margin
                key = (model, rival, demand, on, amount)
                if model != rival and key not in seen_demands:
                    seen_demands.add(key)
                    yield judge.judge(requirement, demand, model, rival, on)


def _judge_forgetting(
    require: Sequence[Requirement],
    models: Mapping[str, tuple[Scored, Model]],
    judge: Judge,
    bases: Mapping[str, str],
    elsewhere: str | None,
) -> Iterator[Verdict]:
    """Yield one verdict on the forgetting of each model or arm."""
    for requirement in require:
        if requirement.forgetting is None or elsewhere is None:
            continue
        about = [
            name
            for name in bases
            if requirement.model is None or models[name][0].reference.text == requirement.model.text
        ]
        pairs = dict.fromkeys((judge.arm_of[name], judge.arm_of[bases[name]]) for name in about)
        for arm, base in pairs:
            yield judge.judge(requirement, "forgetting", arm, base, elsewhere)


def _judge_sizes(
    require: Sequence[Requirement], models: Mapping[str, tuple[Scored, Model]]
) -> Iterator[Verdict]:
    """Yield one verdict for each limit on the size of a model, whatever its columns."""
    for requirement in require:
        if requirement.at_most is None or requirement.model is None:
            continue
        first_columns: dict[str, tuple[str, Model]] = {}
        for name, (scored, model) in models.items():
            if scored.reference.text == requirement.model.text:
                first_columns.setdefault(model.fingerprint, (name, model))
        for name, model in first_columns.values():
            sizes = _measure_sizes(model)
            for unit, limit in requirement.at_most.limits():
                size = sizes.get(unit)
                yield Verdict(
                    text=describe_size(name, unit, limit, size),
                    met=size is not None and size <= limit,
                    model=name,
                    demand=f"at_most_{unit}",
                    margin=limit,
                    difference=size or 0.0,
                    lower_bound=size or 0.0,
                )


def _measure_sizes(model: Model) -> dict[str, float]:
    """Return the parameters and megabytes that a model's folder shows; an adapter has those of its base."""
    sizes: dict[str, float] = {}
    # Where they cannot be read, the weights are in some other form than a transformer's.
    with contextlib.suppress(CheckpointError):
        sizes["megabytes"] = Checkpoint(model.folder).weight_bytes / 1e6
    with contextlib.suppress(CheckpointError):
        sizes["parameters"] = count_parameters(Checkpoint(model.folder))
    return sizes


def curves(models: Sequence[Scored], judge: Judge, groups: Sequence[str]) -> list[ScoreCurve]:
    """Return a curve for every step whose `foreach` has a numeric variable with at least three values.

    Models that differ only in seed or draw share a point. A curve's `name` is the step with its other
    variables, but without variables that the number determines, as the first weight of a merge determines the
    second. Embedding sizes and the steps of a training's checkpoints also count as numeric variables.
    """
    models_by_curve: dict[tuple[str, str], dict[float, list[Scored]]] = {}
    for step, several in _group_by_step(models).items():
        rows = [_read_variables(model) for model in several]
        for variable in _find_axes(rows):
            for model, row in zip(several, rows, strict=True):
                number = _parse_number(row.get(variable, ""))
                if number is not None:
                    other_variables = [
                        f"{k}={row[k]}" for k in _list_other_variables(variable, row, rows)
                    ]
                    places = models_by_curve.setdefault(
                        (",".join([step, *other_variables]), variable), {}
                    )
                    places.setdefault(number, []).append(model)
    return [
        ScoreCurve(name, variable, _build_curve_points(places, judge, groups))
        for (name, variable), places in models_by_curve.items()
        if len(places) >= (2 if variable == SIZE else PLACES)
    ]


def _group_by_step(models: Sequence[Scored]) -> dict[str, list[Scored]]:
    models_by_step: dict[str, list[Scored]] = {}
    for model in models:
        models_by_step.setdefault(_step_name(model), []).append(model)
    return models_by_step


def _read_variables(model: Scored) -> dict[str, str]:
    """Return the variables of a model's step without draws and seeds, with its size and checkpoint step."""
    variables = {
        k: v
        for k, v in read_variables(model.reference.step or "").items()
        if k not in CHANCE_VARIABLES
    }
    state = _STATE.search(model.model) if model.reference.part is not None else None
    if state is not None:
        variables[STEP] = state[1]
    return variables if model.size is None else {**variables, SIZE: str(model.size)}


def _find_axes(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the numeric variables; of several that change together, only the first."""
    axes: list[str] = []
    for name in dict.fromkeys(name for row in rows for name in row):
        has_number = any(_parse_number(row.get(name, "")) is not None for row in rows)
        is_repeated = (
            _follows_axis(name, other, rows) and _follows_axis(other, name, rows) for other in axes
        )
        if has_number and not any(is_repeated):
            axes.append(name)
    return axes


def _list_other_variables(
    axis: str, row: Mapping[str, str], rows: Sequence[Mapping[str, str]]
) -> Iterator[str]:
    """Yield the names of the row's variables that the axis does not determine."""
    for name in row:
        if name != axis and not _follows_axis(name, axis, rows):
            yield name


def _follows_axis(name: str, axis: str, rows: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a variable changes, and has one value for each value of the axis."""
    pairs = {(row.get(axis), row.get(name)) for row in rows}
    changes = len({value for _, value in pairs}) > 1
    return changes and len(pairs) == len({at for at, _ in pairs})


def _step_name(model: Scored) -> str:
    """Return the id of the model's step without variables, or the model's name if no step made it."""
    if model.reference.step is not None:
        return model.reference.step.partition(".")[0]
    return model.model


def _build_curve_points(
    places: dict[float, list[Scored]], judge: Judge, groups: Sequence[str]
) -> tuple[CurvePoint, ...]:
    points = []
    for at, models in sorted(places.items()):
        names = tuple(model.name for model in models)
        arm = Arm(" + ".join(names), {str(i): name for i, name in enumerate(names)})
        judge.arms.setdefault(arm.name, arm)
        means = {MEAN_OF.get(group, group): judge.estimate(arm.name, group) for group in groups}
        points.append(CurvePoint(at, names, means))
    return tuple(points)


def _parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
