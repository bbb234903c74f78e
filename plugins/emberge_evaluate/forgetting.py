"""Forgetting: how much less than its base a model scores on tasks that are nobody's training domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from emberge import Model, ModelRef, TaskInfo
from emberge.evaluating import Comparison, required_tasks

from emberge_evaluate.comparison import Judge
from emberge_evaluate.seed_groups import Arm, Scored

Models = Mapping[str, tuple[Scored, Model]]


def mark_elsewhere(tasks: Sequence[TaskInfo], words: Sequence[str]) -> list[TaskInfo]:
    """Return the tasks with the domain "elsewhere" for those that a recipe's words mean.

    Raises:
        RecipeError: for a word that means none of them.
    """
    chosen = {task.name for word in words for task in required_tasks(word, tasks)}
    return [replace(t, domain="elsewhere") if t.name in chosen else t for t in tasks]


def forgetting_group(tasks: Sequence[TaskInfo]) -> str | None:
    """Return the group of tasks that forgetting is measured on; None where no domain is known.

    It is "elsewhere" if any task is, else "out": sets that no member's training data names.
    """
    known = {task.domain for task in tasks}
    return next((group for group in ("elsewhere", "out") if group in known), None)


def bases_of(models: Models, base: ModelRef | None) -> dict[str, str]:
    """Return by model the one that it forgets from, among those scored; without the bases themselves.

    It is the recipe's `base`, or by the models' artifacts the one model that they were trained from. At
    several sizes of embeddings or seeds of an evaluation each has its own column of it.
    """
    common = _common_base(models)
    chosen = {
        name
        for name, (scored, model) in models.items()
        if (base is not None and scored.reference.text == base.text)
        or (base is None and model.fingerprint == common)
    }
    columns = {_place(models[name][0]): name for name in chosen}
    return {
        name: columns[_place(scored)]
        for name, (scored, _) in models.items()
        if name not in chosen and _place(scored) in columns
    }


def _common_base(models: Models) -> str | None:
    """Return the content of the scored model that others were trained from; None unless it is one."""
    there = {model.fingerprint for _, model in models.values()}
    found = {_base_fingerprint(model) for _, model in models.values()} & there
    return str(found.pop()) if len(found) == 1 else None


def _base_fingerprint(model: Model) -> object:
    return model.details.get("base_fingerprint")


def _place(scored: Scored) -> tuple[int | None, int | None]:
    return scored.size, scored.drawn


def forgetting(
    judge: Judge, bases: Mapping[str, str], group: str | None, arms: Sequence[Arm] = ()
) -> Iterator[Comparison]:
    """Yield the comparison of the base with each model, or arm, that came of it, on a group of tasks."""
    arm_of = {model: arm.name for arm in arms for model in arm.members}
    pairs = {arm_of.get(model, model): arm_of.get(base, base) for model, base in bases.items()}
    if group is not None:
        yield from (judge.compare(base, model, group) for model, base in pairs.items())
