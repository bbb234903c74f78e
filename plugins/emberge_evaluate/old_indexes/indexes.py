"""Indexes of other models side by side: a model on each is a column of its own, as models are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from emberge import Model, TaskInfo, TaskScore
from emberge.wording import join_some

from emberge_evaluate.seed_groups import Scored
from emberge_evaluate.sizes import ScoredModels


def columns_by_index(columns: ScoredModels) -> ScoredModels:
    """Return a column `model on index` beside each model, or the columns where tasks have no indexes.

    A model on the index of itself is left out: it is the model.
    """
    indexes = _indexes(columns.tasks)
    if not indexes:
        return columns
    models: dict[str, tuple[Scored, Model]] = {}
    found: dict[str, dict[str, TaskScore]] = {}
    for name, (scored, model) in columns.models.items():
        for label, index_of in [(None, None), *indexes.items()]:
            if index_of == scored.reference.text:
                continue
            column = name if label is None else f"{name} on {label}"
            models[column] = replace(scored, name=column, index=label, index_of=index_of), model
            found[column] = {
                task.name_without_index: replace(columns.scores[name][task.name], task=_plain(task))
                for task in columns.tasks
                if task.index == label
            }
    tasks = {task.name_without_index: _plain(task) for task in columns.tasks}
    return ScoredModels(models, list(tasks.values()), found)


def index_problems(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem where some tasks are scored on indexes that others are not: no mean would compare."""
    indexes = _indexes(tasks)
    on: dict[str, set[str | None]] = {}
    for task in tasks:
        on.setdefault(task.plain_name, set()).add(task.index)
    if indexes and (others := [name for name, own in on.items() if own != {None, *indexes}]):
        yield (
            f"{join_some(others)}: not scored on the index {' and '.join(indexes)}; give all evaluators the "
            "same documents_of, or put those without into an evaluation of their own"
        )


def _indexes(tasks: Sequence[TaskInfo]) -> Mapping[str, str | None]:
    """Return the references of the indexes' models by label."""
    return {label: task.index_of for task in tasks if (label := task.index) is not None}


def _plain(task: TaskInfo) -> TaskInfo:
    return replace(task, name=task.name_without_index, index=None, index_of=None)
