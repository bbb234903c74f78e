"""The `evaluate` step: score models, compare them honestly, and hold them to what the recipe asks."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from emberge import (
    Artifact,
    Evaluator,
    Model,
    ModelRef,
    Preflight,
    Problem,
    RecipeError,
    Step,
    TaskInfo,
    TaskScore,
    Workspace,
    later,
)

from emberge_standard.arms import Scored
from emberge_standard.requirements import Requirement, tasks_of
from emberge_standard.score_result import result_of
from emberge_standard.score_store import ScoreStore, file_name
from emberge_standard.score_table import table

__all__ = ["Evaluate", "ModelEntry", "scored"]

SCORES, TABLE = "scores.json", "scores.md"
Scores = dict[str, dict[str, TaskScore]]


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model to score, and what to call it in tables (its step's id, hub id or folder by default).

    Models of one `arm` are told apart by chance alone, and pooled: their mean, its spread and its
    differences from other arms are told. By default those of a `foreach` over `seed` are an arm.
    """

    model: ModelRef
    name: str | None = None
    arm: str | None = later(None)


@dataclass(frozen=True, kw_only=True)
class Evaluate(Step):
    """Score models on tasks, and say which differences are more than chance.

    Every model is scored by every evaluator; what was scored before is not scored again. Differences from
    the first model come with 95 % intervals of a paired bootstrap over `resamples` draws. Models that differ
    in `seed` alone are compared as one, with the spread of the seeds in the intervals. What models cost to
    train is told beside, where their steps know it. `require` are claims that must hold: if one does not,
    the scores are still published and the run ends with exit code 3.

    It leaves `scores.json` (scores, intervals, means, comparisons, requirements), `scores.md` (a table, ×
    100) and each evaluator's own results under `results/<model>/<task>.json`.
    """

    produces = "scores"

    models: tuple[ModelEntry, ...]
    """The models to score; differences are to the first."""
    evaluators: tuple[Evaluator, ...]
    """What scores them: `{mteb: {…}}`."""
    require: tuple[Requirement, ...] = ()
    resamples: int = 4000

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.models:
            yield context.problem("there is no model to score", "models")
        if not self.evaluators:
            yield context.problem("there is no evaluator", "evaluators")
        yield from self._check_models(context)
        yield from self._check_require(context)
        if self.resamples < 100:
            yield context.problem("a bootstrap needs at least 100 resamples", "resamples")
        for evaluator in self.evaluators:
            yield from evaluator.check(context)

    def _check_models(self, context: Preflight) -> Iterator[Problem]:
        from emberge import whole_problems

        for entry in self.models:
            folder, adapter = context.model(entry.model), context.adapter(entry.model)
            for problem in whole_problems(entry.model.text, folder, adapter):
                yield context.problem(str(problem), "models")
        counted = Counter((entry.model.text, entry.name) for entry in self.models)
        for (text, _), count in counted.items():
            if count > 1:
                yield context.problem(f"model '{text}' is named {count} times", "models")

    def _check_require(self, context: Preflight) -> Iterator[Problem]:
        scored = {entry.model.text for entry in self.models}
        for requirement in self.require:
            for fault in requirement.faults():
                yield context.problem(fault, "require")
            for reference in requirement.references():
                if reference.text not in scored:
                    yield context.problem(_stray(reference), "require")

    def run(self, workspace: Workspace) -> Artifact:
        models = self._resolve(workspace)
        plans = [evaluator.plan(workspace) for evaluator in self.evaluators]
        tasks = [task for plan in plans for task in plan]
        self._hold_together(tasks)
        scores = self._score({name: model for name, (_, model) in models.items()}, plans, workspace)
        result = result_of(
            models, tasks, scores, self.require, resamples=self.resamples, seed=workspace.seed
        )
        _write(result, scores, workspace)
        unmet = [r["text"] for r in result["requirements"] if not r["met"]]
        return Artifact(
            kind="scores",
            parents=tuple(model.fingerprint for _, model in models.values()),
            details={
                "scores": SCORES,
                "table": TABLE,
                "models": list(models),
                "tasks": [task.name for task in tasks],
                "in_domain": [task.name for task in tasks if task.domain == "in"],
                "means": result["means"],
                "unmet": [] if workspace.rehearsal else unmet,
            },
        )

    def _resolve(self, workspace: Workspace) -> dict[str, tuple[Scored, Model]]:
        """Models by the name they get in tables, with what the recipe says of each."""
        found: dict[str, tuple[Scored, Model]] = {}
        for entry in self.models:
            models = workspace.models(entry.model)
            for number, model in enumerate(models, 1):
                said = Scored(model.name, entry.model, entry.name, entry.arm)
                wanted = _called(said, number if len(models) > 1 else None)
                name = _free_name([wanted, f"{wanted} ({entry.model})"], found)
                found[name] = replace(said, name=name), model
        return found

    def _hold_together(self, tasks: Sequence[TaskInfo]) -> None:
        for name, count in Counter(task.name for task in tasks).items():
            if count > 1:
                raise RecipeError(f"{count} evaluators give a task called '{name}'; leave one out")
        scored = {entry.model.text for entry in self.models}
        for requirement in self.require:
            tasks_of(requirement, tasks)
            for reference in requirement.references():
                if reference.text not in scored:
                    raise RecipeError(_stray(reference))

    def _score(
        self, models: Mapping[str, Model], plans: Sequence[Sequence[TaskInfo]], workspace: Workspace
    ) -> Scores:
        store = ScoreStore(workspace.store / "scores")
        scores: Scores = {}
        parts = len(models) * len(plans)
        for row, (name, model) in enumerate(models.items()):
            mine: dict[str, TaskScore] = {}
            for column, (evaluator, plan) in enumerate(zip(self.evaluators, plans, strict=True)):
                share = _Share(workspace, name, row * len(plans) + column, parts)
                kept = {task.name: store.read(model, task) for task in plan}
                missing = [task for task in plan if kept[task.name] is None]
                for score in scored(evaluator, model, missing, share) if missing else ():
                    store.write(model, score)
                    kept[score.task.name] = score
                mine.update((task, score) for task, score in kept.items() if score is not None)
                share.progress(1, 1)
            for task, score in mine.items():
                workspace.metric(f"score/{task}/{name}", score.score)
            scores[name] = mine
        return scores


def scored(
    evaluator: Evaluator, model: Model, tasks: Sequence[TaskInfo], workspace: Any
) -> Iterator[TaskScore]:
    """An evaluator's scores; it sees a whole model, whatever the model is made of."""
    from emberge import whole_model

    with whole_model(model, workspace.work, workspace.machine) as folder:
        whole = replace(model, folder=folder, adapter=None)
        yield from evaluator.evaluate(whole, tasks, workspace)


def _called(said: Scored, number: int | None) -> str:
    """What a model is called: as the recipe says, with its place where that name stands for several."""
    if said.called is None:
        return said.name
    if number is not None:
        return f"{said.called}.{number}"
    return f"{said.called}.{said.place}" if said.place else said.called


def _free_name(wanted: Sequence[str], taken: Container[str]) -> str:
    """The first wanted name that is free, or the last one with a number."""
    numbered = (f"{wanted[-1]} {number}" for number in itertools.count(2))
    return next(name for name in itertools.chain(wanted, numbered) if name not in taken)


def _stray(reference: ModelRef) -> str:
    return f"'{reference}' is in a requirement but not among the models; add it there"


def _write(result: Mapping[str, Any], scores: Scores, workspace: Workspace) -> None:
    folder = workspace.folder
    text = json.dumps(result, indent=1, ensure_ascii=False)
    (folder / SCORES).write_text(text, encoding="utf-8")
    (folder / TABLE).write_text(table(result), encoding="utf-8")
    for model, mine in scores.items():
        own = folder / "results" / file_name(model)
        own.mkdir(parents=True, exist_ok=True)
        for task, score in mine.items():
            text = json.dumps(score.result, indent=1, ensure_ascii=False)
            (own / f"{file_name(task)}.json").write_text(text, encoding="utf-8")


class _Share:
    """A workspace for one model and evaluator: its progress is a share of the whole step's."""

    def __init__(self, workspace: Workspace, model: str, place: int, parts: int) -> None:
        self._workspace = workspace
        self._model = model
        self._place = place
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workspace, name)

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        """Say how far this model is."""
        share = done / total if total else 1.0
        words = f"{self._model} · {note}" if note else self._model
        self._workspace.progress(self._place + share, self._parts, "models", words)
