"""Scoring of models by evaluators: scores in the store are read, others are computed and stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from emberge.contracts import Evaluator, Model, TaskInfo, TaskScore, Workspace
from emberge.errors import RecipeError
from emberge.evaluating.score_store import ScoreStore
from emberge.evaluating.task_groups import required_tasks

Plans = Sequence[tuple[Evaluator, Sequence[TaskInfo]]]


def plan_tasks(
    evaluators: Sequence[Evaluator], workspace: Workspace, *, about: Sequence[str] = ()
) -> Plans:
    """Return every evaluator with its tasks; `about` are the words that requirements use for tasks.

    Raises:
        RecipeError: for two tasks of one name, or a requirement about no task.
    """
    plans = [(evaluator, evaluator.plan(workspace)) for evaluator in evaluators]
    tasks = [task for _, plan in plans for task in plan]
    for name, count in Counter(task.name for task in tasks).items():
        if count > 1:
            raise RecipeError(f"{count} evaluators give a task called '{name}'; leave one out")
    for word in about:
        required_tasks(word, tasks)
    return plans


def score_model(
    model: Model, plans: Plans, workspace: Workspace, *, name: str, place: int = 0, of: int = 1
) -> dict[str, TaskScore]:
    """Return a model's scores by task, and log each as a metric `score/<task>/<name>`.

    `place` is the model's among the `of` models that the step scores, for its progress.
    """
    found: dict[str, TaskScore] = {}
    for column, (evaluator, tasks) in enumerate(plans):
        share = _ShareOfProgress(workspace, name, place * len(plans) + column, of * len(plans))
        found |= score_tasks(evaluator, model, tasks, share)
        share.finish()
    for task, score in found.items():
        workspace.metric(f"score/{task}/{name}", score.score)
    return found


def score_tasks(
    evaluator: Evaluator, model: Model, tasks: Sequence[TaskInfo], workspace: Any
) -> dict[str, TaskScore]:
    """Return a model's scores by task; those that all steps' store has are not computed again.

    The evaluator gets a whole model folder, also of an adapter on its base.
    """
    store = ScoreStore(workspace.store / "scores")
    kept = {task.name: store.read(model, task) for task in tasks}
    missing = [task for task in tasks if kept[task.name] is None]
    if missing:
        with workspace.whole_model(model) as folder:
            whole = replace(model, folder=folder, adapter=None)
            for score in evaluator.evaluate(whole, missing, workspace):
                store.write(model, score)
                kept[score.task.name] = score
    return {name: score for name, score in kept.items() if score is not None}


class _ShareOfProgress:
    """Workspace for one model and evaluator, whose progress is a share of the whole step's."""

    def __init__(self, workspace: Workspace, model: str, place: int, parts: int) -> None:
        self._workspace = workspace
        self._model = model
        self._place = place
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workspace, name)

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        """Report the model's progress as a share of the step's."""
        if self._parts == 1:
            self._workspace.progress(done, total, unit, note)
            return
        share = done / total if total else 1.0
        words = f"{self._model} · {note}" if note else self._model
        self._workspace.progress(self._place + share, self._parts, "models", words)

    def finish(self) -> None:
        """Report that this evaluator has scored the model."""
        if self._parts > 1:
            self.progress(1, 1)
