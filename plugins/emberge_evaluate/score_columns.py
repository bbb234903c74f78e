"""Columns of an evaluation for each size of a model's embeddings, and for each seed of an evaluator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from emberge import Model, TaskInfo, TaskScore
from emberge.wording import join_some

from emberge_evaluate.seed_groups import Scored

Models = Mapping[str, tuple[Scored, Model]]
TaskScores = Mapping[str, Mapping[str, TaskScore]]
Axis = Literal["size", "seed"]
# By what tasks are split: the mark before its value in a column's name, the field of the column, and the
# words of a problem.
_AXES: Mapping[Axis, tuple[str, str, str, str]] = {
    "size": ("@", "size", "at every size", "dims"),
    "seed": ("#", "drawn", "under every seed", "seeds"),
}


@dataclass(frozen=True)
class ScoredModels:
    """Models and their scores on tasks, by the model's name in tables."""

    models: Models
    tasks: Sequence[TaskInfo]
    scores: TaskScores


def split_columns(columns: ScoredModels, axis: Axis) -> ScoredModels:
    """Return a column `model@size` or `model#seed` for each; unchanged columns if no task has any.

    A task without a seed has the same score in all columns of a model.
    """
    values = _list_values(columns.tasks, axis)
    if not values:
        return columns
    mark, option, *_ = _AXES[axis]
    models: dict[str, tuple[Scored, Model]] = {}
    scores_by_column: dict[str, dict[str, TaskScore]] = {}
    for name, (scored, model) in columns.models.items():
        for value in values:
            column = f"{name}{mark}{value}"
            changes: dict[str, Any] = {"name": column, option: value}
            models[column] = replace(scored, **changes), model
            scores_by_column[column] = {
                plain.name: replace(columns.scores[name][task.name], task=plain)
                for task in columns.tasks
                if getattr(task, axis) in (None, value)
                for plain in [_remove(task, axis)]
            }
    plain_tasks = {task.name: task for task in (_remove(one, axis) for one in columns.tasks)}
    return ScoredModels(models, list(plain_tasks.values()), scores_by_column)


def tasks_of_columns(tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Return each task once, with size and seed removed from its name."""
    plain = [replace(task, name=task.plain_name, size=None, seed=None) for task in tasks]
    return list({task.name: task for task in plain}.values())


def column_problems(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem if no column would have all tasks: they have different sizes or different seeds."""
    for axis, (*_, where, option) in _AXES.items():
        values = _list_values(tasks, axis)
        values_by_task: dict[str, set[int | None]] = {}
        for task in tasks:
            values_by_task.setdefault(_remove(task, axis).name, set()).add(getattr(task, axis))
        fitting: list[set[int | None]] = [set(values)]
        if axis == "seed":
            fitting.append({None})
        unfit = [name for name, found in values_by_task.items() if found not in fitting]
        if values and unfit:
            yield (
                f"{join_some(unfit)}: not scored {where} of {', '.join(map(str, values))}; give all "
                f"evaluators the same {option}, or put those with others into an evaluation of their own"
            )


def _list_values(tasks: Sequence[TaskInfo], axis: Axis) -> list[int]:
    values = (getattr(task, axis) for task in tasks)
    return list(dict.fromkeys(value for value in values if value is not None))


def _remove(task: TaskInfo, axis: Axis) -> TaskInfo:
    """Return the task without its size or seed, also in its name."""
    if axis == "size":
        return replace(task, name=task.name_without_size, size=None)
    return replace(task, name=task.name_without_seed, seed=None)
