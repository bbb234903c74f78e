"""Means over tasks and kinds of task.

`Mean(Task)` is the mean over tasks, `Mean(TaskType)` the mean over kinds of task of their means, as in
MTEB (Muennighoff et al., 2023, arXiv:2210.07316).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emberge.contracts.evaluator import TaskInfo
from emberge.errors import RecipeError, suggest

__all__ = ["GROUPS", "GROUP_OF", "LABEL_OF", "means", "parts", "select", "tasks_of"]

GROUPS = {"all": "all tasks", "in": "in domain", "out": "out of domain"}
# What the mean over a group of tasks is called in a result.
LABEL_OF = {"all": "task", "type": "type", "in": "in", "out": "out"}


def select(tasks: Sequence[TaskInfo], group: str) -> list[TaskInfo]:
    """The tasks of a group: "all", "in" or "out" of domain, or the one of that name."""
    if group == "all":
        return list(tasks)
    if group in ("in", "out"):
        return [task for task in tasks if task.domain == group]
    return [task for task in tasks if task.name == group]


def parts(tasks: Sequence[TaskInfo], label: str) -> list[list[TaskInfo]]:
    """The tasks of a group, or for "type" those of each kind: a score is the mean of the parts' means."""
    if label != "type":
        chosen = select(tasks, label)
        return [chosen] if chosen else []
    by_kind: dict[str, list[TaskInfo]] = {}
    for task in tasks:
        by_kind.setdefault(task.kind, []).append(task)
    return list(by_kind.values())


def means(tasks: Sequence[TaskInfo], scores: Mapping[str, float]) -> dict[str, float | None]:
    """A model's means: over tasks, over kinds of task, in domain, out of domain; None over no task."""
    found: dict[str, float | None] = {}
    for group, name in LABEL_OF.items():
        kinds = [[scores[task.name] for task in part] for part in parts(tasks, group)]
        averages = [sum(values) / len(values) for values in kinds]
        found[name] = sum(averages) / len(averages) if averages else None
    return found


# How a recipe says which tasks, and what that is in a result.
GROUP_OF = {"all": "all", "ind": "in", "ood": "out"}


def tasks_of(word: str, tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """The tasks that a requirement is about: `all`, `ind`, `ood`, or the one of that name.

    Raises:
        RecipeError: when there is none.
    """
    chosen = select(tasks, GROUP_OF.get(word, word))
    if chosen:
        return chosen
    if word in GROUP_OF:
        raise RecipeError(
            f"a requirement is about '{word}' tasks, but none of the tasks is "
            f"{'in' if word == 'ind' else 'out of'} domain; say `domain` in the catalogue"
        )
    hint = suggest(word, [*GROUP_OF, *(task.name for task in tasks)])
    raise RecipeError(f"a requirement is about '{word}', which is no task here{hint}")
