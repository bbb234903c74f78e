"""Columns of an evaluation for each size of a model's embeddings, and for each seed of an evaluator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from emberge import Model, TaskInfo, TaskScore
from emberge.wording import join_some

from emberge_evaluate.seed_groups import Scored


@dataclass(frozen=True)
class ScoredModels:
    """Models and their scores on tasks, by the model's name in tables."""

    models: Mapping[str, tuple[Scored, Model]]
    tasks: Sequence[TaskInfo]
    scores: Mapping[str, Mapping[str, TaskScore]]


def split_columns(columns: ScoredModels) -> ScoredModels:
    """Return a column for each size of embeddings and each seed, such as `model@size` and `model#seed`.

    A task without a seed has the same score in all columns of a model.
    """
    sizes, seeds = (_list_values(columns.tasks, axis) or [None] for axis in ("size", "seed"))
    models: dict[str, tuple[Scored, Model]] = {}
    scores: dict[str, dict[str, TaskScore]] = {}
    for name, size, seed in itertools.product(columns.models, sizes, seeds):
        scored, model = columns.models[name]
        column = replace(scored, size=size, drawn=seed)
        models[column.name] = column, model
        scores[column.name] = {
            task.plain_name: replace(columns.scores[name][task.name], task=_remove_form(task))
            for task in columns.tasks
            if task.size in (None, size) and task.seed in (None, seed)
        }
    return ScoredModels(models, tasks_of_columns(columns.tasks), scores)


def tasks_of_columns(tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Return each task once, with size and seed removed from its name."""
    return list({task.plain_name: _remove_form(task) for task in tasks}.values())


def column_problems(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem if no column would have all tasks: they have different sizes or different seeds."""
    for axis, where, option in (
        ("size", "at every size", "dims"),
        ("seed", "under every seed", "seeds"),
    ):
        values = _list_values(tasks, axis)
        values_by_task: dict[str, set[int | None]] = {}
        for task in tasks:
            values_by_task.setdefault(task.plain_name, set()).add(getattr(task, axis))
        # What draws no number is in the columns of all seeds.
        fitting: tuple[set[int | None], ...] = ({*values}, {None} if axis == "seed" else {*values})
        unfit = [name for name, found in values_by_task.items() if found not in fitting]
        if values and unfit:
            yield (
                f"{join_some(unfit)}: not scored {where} of {', '.join(map(str, values))}; give all "
                f"evaluators the same {option}, or put those with others into an evaluation of their own"
            )


def _list_values(tasks: Sequence[TaskInfo], axis: str) -> list[int | None]:
    values = (getattr(task, axis) for task in tasks)
    return list(dict.fromkeys(value for value in values if value is not None))


def _remove_form(task: TaskInfo) -> TaskInfo:
    """Return the task without its size and seed, also in its name."""
    return replace(task, name=task.plain_name, size=None, seed=None)
