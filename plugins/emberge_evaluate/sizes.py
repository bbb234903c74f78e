"""Sizes of embeddings side by side: each size of a model is a column of its own, as models are."""

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
    """Models and their scores on tasks, by a model's name in tables."""

    models: Models
    tasks: Sequence[TaskInfo]
    scores: TaskScores


def columns_by_size(models: Models, tasks: Sequence[TaskInfo], scores: TaskScores) -> ScoredModels:
    """Return a column `model@size` for every model and size, or the models where tasks have no sizes."""
    sizes = _find_sizes(tasks)
    if not sizes:
        return ScoredModels(models, tasks, scores)
    at = {size: [task for task in tasks if task.size == size] for size in sizes}
    columns: dict[str, tuple[Scored, Model]] = {}
    found: dict[str, dict[str, TaskScore]] = {}
    for name, (scored, model) in models.items():
        for size in sizes:
            column = f"{name}@{size}"
            columns[column] = replace(scored, name=column, size=size), model
            found[column] = {
                task.name_without_size: replace(scores[name][task.name], task=_without_size(task))
                for task in at[size]
            }
    plain = {task.name_without_size: _without_size(task) for task in tasks}
    return ScoredModels(columns, list(plain.values()), found)


def tasks_of_columns(tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """Return each task once, by the name that it has in the columns of all sizes, seeds and indexes."""
    plain = [
        replace(_without_size(task), name=task.plain_name, seed=None, index=None, index_of=None)
        for task in tasks
    ]
    return list({task.name: task for task in plain}.values())


def size_problems(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem where some tasks are scored at sizes that others are not: no mean would compare."""
    sizes = _find_sizes(tasks)
    of: dict[str, set[int | None]] = {}
    for task in tasks:
        of.setdefault(task.name_without_size, set()).add(task.size)
    if sizes and (others := [name for name, own in of.items() if own != set(sizes)]):
        yield (
            f"{join_some(others)}: not scored at every size of {', '.join(map(str, sizes))}; give all "
            "evaluators the same dims, or put those without into an evaluation of their own"
        )


def _find_sizes(tasks: Sequence[TaskInfo]) -> list[int]:
    return list(dict.fromkeys(task.size for task in tasks if task.size is not None))


def _without_size(task: TaskInfo) -> TaskInfo:
    return replace(task, name=task.name_without_size, size=None)
