"""Columns of an evaluation for each size of a model's embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from emberge import Model, TaskInfo, TaskScore
from emberge.wording import join_some

from emberge_evaluate.seed_groups import Scored

Models = Mapping[str, tuple[Scored, Model]]
TaskScores = Mapping[str, Mapping[str, TaskScore]]


@dataclass(frozen=True)
class ScoredModels:
    """Models and their scores on tasks, by the model's name in tables."""

    models: Models
    tasks: Sequence[TaskInfo]
    scores: TaskScores


def columns_by_size(models: Models, tasks: Sequence[TaskInfo], scores: TaskScores) -> ScoredModels:
    """Return a column `model@size` for every model and size; one per model if no task has sizes."""
    sizes = _find_sizes(tasks)
    if not sizes:
        return ScoredModels(models, tasks, scores)
    tasks_by_size = {size: [task for task in tasks if task.size == size] for size in sizes}
    columns: dict[str, tuple[Scored, Model]] = {}
    scores_by_column: dict[str, dict[str, TaskScore]] = {}
    for name, (scored, model) in models.items():
        for size in sizes:
            column = f"{name}@{size}"
            columns[column] = replace(scored, name=column, size=size), model
            scores_by_column[column] = {
                task.name_without_size: replace(scores[name][task.name], task=_remove_size(task))
                for task in tasks_by_size[size]
            }
    tasks_by_name = {task.name_without_size: _remove_size(task) for task in tasks}
    return ScoredModels(columns, list(tasks_by_name.values()), scores_by_column)


def tasks_of_columns(tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Return each task once, with size and seed removed from its name."""
    plain = [replace(_remove_size(task), name=task.plain_name, seed=None) for task in tasks]
    return list({task.name: task for task in plain}.values())


def size_problems(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem if tasks are scored at different sizes, so that their means cannot be compared."""
    sizes = _find_sizes(tasks)
    sizes_by_task: dict[str, set[int | None]] = {}
    for task in tasks:
        sizes_by_task.setdefault(task.name_without_size, set()).add(task.size)
    misfit_tasks = [name for name, found in sizes_by_task.items() if found != set(sizes)]
    if sizes and misfit_tasks:
        yield (
            f"{join_some(misfit_tasks)}: not scored at every size of {', '.join(map(str, sizes))}; give all "
            "evaluators the same dims, or put those without into an evaluation of their own"
        )


def _find_sizes(tasks: Sequence[TaskInfo]) -> list[int]:
    return list(dict.fromkeys(task.size for task in tasks if task.size is not None))


def _remove_size(task: TaskInfo) -> TaskInfo:
    return replace(task, name=task.name_without_size, size=None)
