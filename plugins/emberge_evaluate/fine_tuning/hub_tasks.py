"""Tasks of the hub by name."""

from __future__ import annotations

from collections.abc import Sequence

from emberge import DataError, suggest

from emberge_evaluate.fine_tuning.task_entry import TaskEntry

__all__ = ["hub_tasks"]

TASKS: dict[str, TaskEntry] = {}
COLLECTIONS: dict[str, tuple[str, ...]] = {}


def hub_tasks(names: Sequence[str]) -> list[TaskEntry]:
    """Return the tasks of names and of collections, and before them those that they start from.

    Raises:
        DataError: for a name that is neither.
    """
    wanted: dict[str, None] = {}
    for name in names:
        if name not in TASKS and name not in COLLECTIONS:
            raise DataError(f"there is no task '{name}'{suggest(name, [*TASKS, *COLLECTIONS])}")
        for one in COLLECTIONS.get(name, (name,)):
            start = TASKS[one].start
            wanted |= {one: None} if start is None else {start: None, one: None}
    return [TASKS[name] for name in wanted]
