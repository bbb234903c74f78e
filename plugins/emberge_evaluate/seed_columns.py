"""Seeds of evaluations side by side: a model under each seed is a column, and all of them are its arm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from emberge import Model, TaskInfo, TaskScore
from emberge.wording import join_some

from emberge_evaluate.seed_groups import Scored
from emberge_evaluate.sizes import ScoredModels


def columns_by_seed(columns: ScoredModels) -> ScoredModels:
    """Return a column `model#seed` for every model and seed, or the columns where tasks have no seeds.

    A task that draws nothing has the same score in all columns of a model.
    """
    seeds = _seeds(columns.tasks)
    if not seeds:
        return columns
    models: dict[str, tuple[Scored, Model]] = {}
    found: dict[str, dict[str, TaskScore]] = {}
    for name, (scored, model) in columns.models.items():
        for seed in seeds:
            column = f"{name}#{seed}"
            models[column] = replace(scored, name=column, drawn=seed), model
            found[column] = {
                task.name_without_seed: replace(columns.scores[name][task.name], task=_plain(task))
                for task in columns.tasks
                if task.seed in (None, seed)
            }
    tasks = {task.name_without_seed: _plain(task) for task in columns.tasks}
    return ScoredModels(models, list(tasks.values()), found)


def seed_problems(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem where tasks are scored under other seeds than others: no column would have both."""
    seeds = _seeds(tasks)
    of: dict[str, set[int | None]] = {}
    for task in tasks:
        of.setdefault(task.name_without_seed, set()).add(task.seed)
    if others := [name for name, own in of.items() if own not in ({None}, set(seeds))]:
        yield (
            f"{join_some(others)}: not scored under every seed of {', '.join(map(str, seeds))}; give all "
            "evaluators the same seeds, or put those with others into an evaluation of their own"
        )


def _seeds(tasks: Sequence[TaskInfo]) -> list[int]:
    return list(dict.fromkeys(task.seed for task in tasks if task.seed is not None))


def _plain(task: TaskInfo) -> TaskInfo:
    return replace(task, name=task.name_without_seed, seed=None)
