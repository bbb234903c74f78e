"""Scores of an evaluation with means, intervals, comparisons, forgetting, costs and requirements."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from emberge import Artifact, ModelRef, TaskInfo, TaskScore
from emberge.contracts import MergeDetails, TrainingCost, TrainingDetails

from emberge_evaluate.columns import Column, ScoredColumns, find_arms
from emberge_evaluate.comparison import ArmComparison
from emberge_evaluate.requirements import Requirement
from emberge_evaluate.scores import ColumnKey, ScoredTask, Scores, Verdict
from emberge_evaluate.task_groups import GROUP_BY_WORD, MEAN_BY_GROUP, list_mean_groups


def build_scores(
    scored: ScoredColumns,
    require: Sequence[Requirement],
    *,
    base: ModelRef | None = None,
    compare: Sequence[tuple[ModelRef, ModelRef]] = (),
    seed: int,
) -> Scores:
    """Return the full result of models' scores; without `base`, the base is read from their artifacts.

    `compare` are pairs of models whose differences are given in addition to those from the first model.
    """
    columns, tasks = scored.columns, scored.tasks
    arms = find_arms(columns)
    judge = ArmComparison(tasks, scored.scores, seed=seed, arms=arms)
    pairs = list(_pair_columns(compare, columns))
    bases, costs = find_bases(columns, base), _scale_costs(columns)
    result = replace(
        _score_arms([column.key for column in columns], pairs, bases, judge),
        fingerprints={column.name: column.model.fingerprint for column in columns},
        requirements=(
            *_judge_demands(require, columns, judge),
            *_judge_forgetting(require, columns, judge, bases),
        ),
        costs=costs,
    )
    if all(len(arm.columns) == 1 for arm in arms):
        return result
    arm_pairs = [(judge.arm_of[name], judge.arm_of[other]) for name, other in pairs]
    arm_bases = {judge.arm_of[name]: judge.arm_of[base] for name, base in bases.items()}
    first_columns = [(arm, next(iter(arm.columns.values()))) for arm in arms]
    pooled = replace(
        _score_arms([arm.key for arm in arms], arm_pairs, arm_bases, judge),
        members={arm.name: dict(arm.columns) for arm in arms},
        costs={arm.name: costs[name] for arm, name in first_columns if name in costs},
    )
    return replace(result, pooled=pooled)


def _score_arms(
    keys: Sequence[ColumnKey],
    pairs: Iterable[tuple[str, str]],
    bases: Mapping[str, str],
    judge: ArmComparison,
) -> Scores:
    """Return the estimates of columns or arms, and their comparisons: with the first, in pairs, of bases."""
    names = [key.name for key in keys]
    tasks = [task.name for task in judge.tasks]
    groups = list_mean_groups(judge.tasks)
    values = {name: {task: judge.estimate(name, task) for task in tasks} for name in names}
    means = {
        name: {MEAN_BY_GROUP.get(group, group): judge.estimate(name, group) for group in groups}
        for name in names
    }
    rows = {name: {**values[name], **means[name]}.items() for name in names}
    spreads = {
        name: {key: one.spread for key, one in row if one.spread is not None}
        for name, row in rows.items()
    }
    all_pairs = dict.fromkeys([*((name, names[0]) for name in names[1:]), *pairs])
    forgetting_group = find_forgetting_group(judge.tasks)
    return Scores(
        fingerprints=dict.fromkeys(names, ""),
        tasks=tuple(_store_task(task, judge.scores) for task in judge.tasks),
        values={name: {key: one.mean for key, one in row.items()} for name, row in values.items()},
        means={name: {key: one.mean for key, one in row.items()} for name, row in means.items()},
        intervals={
            name: {key: one.interval for key, one in row if one.interval}
            for name, row in rows.items()
        },
        spreads={name: row for name, row in spreads.items() if row},
        comparisons=tuple(
            judge.compare(name, other, group)
            for name, other in all_pairs
            if name != other
            for group in (*groups, *tasks)
        ),
        forgetting=tuple(
            judge.compare(base, name, group)
            for name, base in bases.items()
            if (group := forgetting_group) is not None
        ),
        columns={key.name: key for key in keys if key != ColumnKey(key.name)},
    )


def _store_task(task: TaskInfo, scores: Mapping[str, Mapping[str, TaskScore]]) -> ScoredTask:
    """Return the task as it is stored, with its units for resampling."""
    units = next(iter(scores.values()))[task.name].units
    return ScoredTask(
        name=task.name,
        kind=task.kind,
        metric=task.metric,
        languages=task.languages,
        domain=task.domain,
        note=task.note,
        unit=units.unit if units else "",
        units=len(units.values) if units else None,
    )


def _pair_columns(
    compare: Iterable[tuple[ModelRef, ModelRef]], columns: Sequence[Column]
) -> Iterator[tuple[str, str]]:
    """Yield the names of each pair of columns; a pair of models has one for each size and seed."""
    for reference, other in compare:
        for first, second in itertools.product(columns, repeat=2):
            texts = (first.reference.text, second.reference.text)
            if texts == (reference.text, other.text) and first.is_like(second):
                yield first.name, second.name


def _scale_costs(columns: Sequence[Column]) -> dict[str, TrainingCost]:
    """Return each column's training cost in units of one training on the largest data of any model.

    There are none if a model was trained on a set that is not among those data: rows of unlike kinds, such as
    texts and pairs, cost differently.
    """
    trainings = {c.name: c.model.list_trainings("").values() for c in columns}
    sets = {name: {s for one in each for s in one.datasets} for name, each in trainings.items()}
    costs = {c.name: cost for c in columns if (cost := find_cost(c.model.artifact))}
    largest = max(costs, key=lambda name: (costs[name].of, len(sets[name])), default="")
    if any(sets[name] - sets[largest] for name in costs):
        return {}
    of = costs[largest].of if costs else 0
    return {n: TrainingCost(round(c.rows / of, 6), c.rows, of) for n, c in costs.items()}


def find_cost(artifact: Artifact | None) -> TrainingCost | None:
    """Return a model's cost in trainings on all its data, stated by a merge or counted from rows."""
    details = artifact.details if artifact is not None else None
    if isinstance(details, MergeDetails):
        return details.training_cost
    if isinstance(details, Mapping) and details.get("training_cost"):  # a choice states its model's
        return TrainingCost(**details["training_cost"])
    if not isinstance(details, TrainingDetails):
        return None
    rows = sum(used.rows for used in details.datasets.values())
    of = sum(used.of for used in details.datasets.values())
    return TrainingCost(round(rows / of, 6), rows, of) if of else None


# ── forgetting: how much a model scores below its base outside the training domains ─────────────


def find_forgetting_group(tasks: Sequence[TaskInfo]) -> str | None:
    """Return the group of tasks on which forgetting is measured; None if no domain is known.

    The group is "elsewhere" if a task has that domain, otherwise "out": tasks whose data no member was
    trained on.
    """
    domains = {task.domain for task in tasks}
    return next((group for group in ("elsewhere", "out") if group in domains), None)


def find_bases(columns: Sequence[Column], base: ModelRef | None) -> dict[str, str]:
    """Map each column to the one of its base with the same size and seed; columns of the base are left out.

    The base is the recipe's `base`, or the one model that the others' artifacts name as their origin.
    """
    contents = {column.model.fingerprint for column in columns}
    artifacts = [column.model.artifact for column in columns]
    stated = {one.base.fingerprint for one in artifacts if one is not None and one.base is not None}
    origins = stated & contents
    common = origins.pop() if len(origins) == 1 else None
    bases = [
        column
        for column in columns
        if (column.model.fingerprint == common if base is None else column.reference == base)
    ]
    return {
        column.name: found.name
        for column in columns
        if column not in bases
        for found in bases
        if found.is_like(column)
    }


def _judge_demands(
    require: Sequence[Requirement], columns: Sequence[Column], judge: ArmComparison
) -> Iterator[Verdict]:
    """Yield one verdict per demand, arm and size of embeddings; seeds of one arm are judged together."""
    arms_of: dict[tuple[str, int | None], dict[str, None]] = {}
    for column in columns:
        arms = arms_of.setdefault((column.reference.text, column.key.size), {})
        arms[judge.arm_of[column.name]] = None
    sizes = dict.fromkeys(column.key.size for column in columns)
    seen_demands = set()
    for requirement in require:
        group = GROUP_BY_WORD.get(requirement.tasks, requirement.tasks)
        for size, (demand, reference) in itertools.product(sizes, requirement.list_demands()):
            rivals = arms_of[reference.text, size]
            for arm, rival in itertools.product(arms_of[str(requirement.model), size], rivals):
                key = (arm, rival, demand, group, requirement.margin)
                if arm != rival and key not in seen_demands:
                    seen_demands.add(key)
                    yield judge.judge(requirement, demand, arm, rival, group)


def _judge_forgetting(
    require: Sequence[Requirement],
    columns: Sequence[Column],
    judge: ArmComparison,
    bases: Mapping[str, str],
) -> Iterator[Verdict]:
    """Yield one verdict on the forgetting of each arm."""
    forgetting_group = find_forgetting_group(judge.tasks)
    for requirement in require:
        if requirement.forgetting is None or forgetting_group is None:
            continue
        names = [
            column.name
            for column in columns
            if column.name in bases and requirement.model in (None, column.reference)
        ]
        pairs = dict.fromkeys((judge.arm_of[name], judge.arm_of[bases[name]]) for name in names)
        for arm, base in pairs:
            yield judge.judge(requirement, "forgetting", arm, base, forgetting_group)
