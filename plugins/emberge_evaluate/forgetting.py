"""Forgetting: how much a model scores below its base on tasks outside the training domains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from emberge import Model, ModelRef, TaskInfo
from emberge.evaluating import Comparison, required_tasks

from emberge_evaluate.comparison import Judge
from emberge_evaluate.seed_groups import Scored

Models = Mapping[str, tuple[Scored, Model]]


def mark_elsewhere(tasks: Sequence[TaskInfo], words: Sequence[str]) -> list[TaskInfo]:
    """Return the tasks, with the domain of those that the recipe's words select set to "elsewhere".

    Raises:
        RecipeError: if a word selects no task.
    """
    task_names = {task.name for word in words for task in required_tasks(word, tasks)}
    return [replace(t, domain="elsewhere") if t.name in task_names else t for t in tasks]


def forgetting_group(tasks: Sequence[TaskInfo]) -> str | None:
    """Return the group of tasks on which forgetting is measured; None if no domain is known.

    The group is "elsewhere" if a task has that domain, otherwise "out": tasks whose data no member was
    trained on.
    """
    domains = {task.domain for task in tasks}
    return next((group for group in ("elsewhere", "out") if group in domains), None)


def bases_of(models: Models, base: ModelRef | None) -> dict[str, str]:
    """Return the scored base of each model that is not itself a base.

    The base is the recipe's `base`, or the one model that the others' artifacts name as their origin. If
    embeddings are scored at several sizes or under several seeds, each model gets the base's column of the
    same size and seed.
    """
    common = _find_common_base(models)
    base_names = {
        name
        for name, (scored, model) in models.items()
        if (base is not None and scored.reference.text == base.text)
        or (base is None and model.fingerprint == common)
    }
    columns = {_key_of(models[name][0]): name for name in base_names}
    return {
        name: columns[_key_of(scored)]
        for name, (scored, _) in models.items()
        if name not in base_names and _key_of(scored) in columns
    }


def _find_common_base(models: Models) -> str | None:
    """Return the fingerprint of the only scored model that others were trained from, else None."""
    contents = {model.fingerprint for _, model in models.values()}
    base_contents = {_find_base_fingerprint(model) for _, model in models.values()} & contents
    return str(base_contents.pop()) if len(base_contents) == 1 else None


def _find_base_fingerprint(model: Model) -> object:
    return model.details.get("base_fingerprint")


def _key_of(scored: Scored) -> tuple[int | None, int | None]:
    return scored.size, scored.drawn


def forgetting(judge: Judge, bases: Mapping[str, str], group: str | None) -> Iterator[Comparison]:
    """Yield the comparison of each derived model or arm with its base on a group of tasks."""
    if group is not None:
        yield from (judge.compare(base, model, group) for model, base in bases.items())
