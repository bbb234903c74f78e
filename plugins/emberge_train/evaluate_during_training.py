"""Evaluation during a training: scores, early stopping, and the choice of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import (
    Count,
    Evaluator,
    Model,
    Preflight,
    Problem,
    RecipeError,
    TaskInfo,
    Workspace,
    suggest,
)
from emberge.wording import join_some
from emberge_evaluate import DOMAIN_BY_WORD, GROUP_BY_WORD, list_group_parts, score_tasks

if TYPE_CHECKING:
    from emberge.training import EarlyStopping


@dataclass(frozen=True, kw_only=True)
class EvaluateDuringTraining:
    """Evaluation of the model during its training; its scores decide when the training ends.

    The result is the best of the scored models, the earliest of equals.

    The other ranks wait while the first one scores. The scores, and so the step at which the training ends,
    are saved in the state from which a killed training continues.
    """

    every: Count
    """Number of steps between two scorings; the model of the last step is always scored."""
    evaluators: tuple[Evaluator, ...]
    """Evaluators that score it: `{mteb: {data: …}}`, as in a step `evaluate`."""
    tasks: str = "all"
    """Deciding tasks, as in `select`: `all`, `kinds`, `ind`, `ood`, a kind of task, or one task."""
    patience: Count | None = None
    """Number of scorings in a row without a new best score that ends the training; by default none does."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        """Yield problems that can be found before a run."""
        tasks_ahead: list[TaskInfo] = []
        all_known = True
        for evaluator in self.evaluators:
            yield from evaluator.check(context)
            for reason in evaluator.check_model(None, context):
                yield context.problem(reason, "evaluate.evaluators")
            tasks = evaluator.preview(context)
            all_known &= tasks is not None
            tasks_ahead += tasks or ()
        for reason in _find_loss_problems(tasks_ahead):
            yield context.problem(reason, "evaluate.evaluators")
        if all_known and self.tasks not in DOMAIN_BY_WORD:
            for reason in self._find_task_problems(tasks_ahead):
                yield context.problem(reason, "evaluate.tasks")

    def build_early_stopping(
        self, workspace: Workspace, start: Model, *, adapts: bool
    ) -> EarlyStopping:
        """Return the rule of early stopping.

        `start` is the model that the training starts from; with `adapts` the training writes an adapter of
        that model.

        Raises:
            DataError: if the data cannot be used.
            RecipeError: if `tasks` means none of the tasks.
        """
        from emberge.training import EarlyStopping

        plans = [(evaluator, evaluator.plan(workspace)) for evaluator in self.evaluators]
        tasks = [task for _, plan in plans for task in plan]
        for reason in (*self._find_task_problems(tasks), *_find_loss_problems(tasks)):
            raise RecipeError(reason)
        parts = [[task.name for task in part] for part in self._group_deciding_tasks(tasks)]
        deciding_names = {name for part in parts for name in part}
        quiet_workspace: Any = _QuietWorkspace(workspace)

        def score(folder: Path, step: int) -> float:
            model = _make_model(f"{workspace.id}/step-{step}", folder, start if adapts else None)
            scores_by_task: dict[str, float] = {}
            for evaluator, plan in plans:
                deciding_tasks = [task for task in plan if task.name in deciding_names]
                results = score_tasks(evaluator, model, deciding_tasks, quiet_workspace)
                scores_by_task |= {name: result.score for name, result in results.items()}
            for name, value in scores_by_task.items():
                workspace.metric(f"score/{name}", value, step)
            means = [sum(scores_by_task[name] for name in part) / len(part) for part in parts]
            return sum(means) / len(means)

        identity = repr((self.tasks, [(t.name, t.fingerprint) for t in tasks]))
        return EarlyStopping(self.every, score, identity, self.patience)

    def _group_deciding_tasks(self, tasks: Sequence[TaskInfo]) -> list[list[TaskInfo]]:
        """Return the deciding tasks in groups; the mean of a group counts once."""
        return list_group_parts(tasks, GROUP_BY_WORD.get(self.tasks, self.tasks))

    def _find_task_problems(self, tasks: Sequence[TaskInfo]) -> Iterator[str]:
        """Yield a problem if `tasks` means none of the tasks."""
        if self._group_deciding_tasks(tasks):
            return
        names = dict.fromkeys([*GROUP_BY_WORD, *(t.kind for t in tasks), *(t.name for t in tasks)])
        hint = suggest(self.tasks, names) or f"; there are {', '.join(names)}"
        yield f"evaluate: `tasks: {self.tasks}` means none of the tasks{hint}"


def _find_loss_problems(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem if a task gives losses: scores that decide must be better the larger they are."""
    if names := [task.name for task in tasks if task.less_is_better]:
        yield (
            f"evaluate: {join_some(names)}: the larger a score the better, and this is a loss; score by "
            "another evaluator, or choose among the kept checkpoints by a step select"
        )


def _make_model(name: str, folder: Path, base: Model | None) -> Model:
    from emberge.model_folder import hash_model

    if base is None:
        return Model(name, folder, hash_model(folder))
    fingerprint = hash_model(base.folder, None, folder)
    return replace(base, name=name, fingerprint=fingerprint, adapter=folder)


class _QuietWorkspace:
    """Workspace that hides the progress of evaluators, so that the bar shows the training's."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workspace, name)

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        """Discard the progress."""

    def part(
        self, noun: str, number: int, count: int, name: str = ""
    ) -> AbstractContextManager[None]:
        """Run the block; its progress is discarded."""
        return nullcontext()
