"""Evaluators meet models: scores that were kept are read, others are computed and kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from emberge.contracts.evaluator import Evaluator, TaskInfo, TaskScore
from emberge.contracts.reference import Model
from emberge.contracts.step import Workspace
from emberge.errors import RecipeError
from emberge.evaluating.score_store import ScoreStore
from emberge.evaluating.task_groups import tasks_of

__all__ = ["Plans", "plans_of", "scored", "scores_of"]

Plans = Sequence[tuple[Evaluator, Sequence[TaskInfo]]]


def plans_of(
    evaluators: Sequence[Evaluator], workspace: Workspace, *, about: Sequence[str] = ()
) -> Plans:
    """Every evaluator with its tasks; `about` is what requirements say of tasks.

    Raises:
        RecipeError: for two tasks of one name, or a requirement about no task.
    """
    plans = [(evaluator, evaluator.plan(workspace)) for evaluator in evaluators]
    tasks = [task for _, plan in plans for task in plan]
    for name, count in Counter(task.name for task in tasks).items():
        if count > 1:
            raise RecipeError(f"{count} evaluators give a task called '{name}'; leave one out")
    for word in about:
        tasks_of(word, tasks)
    return plans


def scores_of(
    model: Model, plans: Plans, workspace: Workspace, *, name: str, place: int = 0, of: int = 1
) -> dict[str, TaskScore]:
    """A model's scores by task, those that were computed before from the store that all steps share.

    `name` is what it is called in numbers that are logged, `place` its place among the `of` models whose
    scores are a whole.
    """
    store = ScoreStore(workspace.store / "scores")
    found: dict[str, TaskScore] = {}
    for column, (evaluator, tasks) in enumerate(plans):
        share = _Share(workspace, name, place * len(plans) + column, of * len(plans))
        kept = {task.name: store.read(model, task) for task in tasks}
        missing = [task for task in tasks if kept[task.name] is None]
        for score in scored(evaluator, model, missing, share) if missing else ():
            store.write(model, score)
            kept[score.task.name] = score
        found.update((task, score) for task, score in kept.items() if score is not None)
        share.ended()
    for task, score in found.items():
        workspace.metric(f"score/{task}/{name}", score.score)
    return found


def scored(
    evaluator: Evaluator, model: Model, tasks: Sequence[TaskInfo], workspace: Any
) -> Iterator[TaskScore]:
    """An evaluator's scores; it sees a whole model, whatever the model is made of."""
    from emberge.merging.whole_model import whole_model

    with whole_model(model, workspace.work, workspace.machine) as folder:
        whole = replace(model, folder=folder, adapter=None)
        yield from evaluator.evaluate(whole, tasks, workspace)


class _Share:
    """A workspace for one model and evaluator: of several, its progress is a share of the whole step's."""

    def __init__(self, workspace: Workspace, model: str, place: int, parts: int) -> None:
        self._workspace = workspace
        self._model = model
        self._place = place
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workspace, name)

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        """Say how far this model is."""
        if self._parts == 1:
            self._workspace.progress(done, total, unit, note)
            return
        share = done / total if total else 1.0
        words = f"{self._model} · {note}" if note else self._model
        self._workspace.progress(self._place + share, self._parts, "models", words)

    def ended(self) -> None:
        """Say that this model has its scores, whoever computed them."""
        if self._parts > 1:
            self.progress(1, 1)
