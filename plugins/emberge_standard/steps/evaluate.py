"""The `evaluate` step: score models, compare them honestly, and hold them to what the recipe asks."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
)

from emberge_standard.requirements import Judge, Requirement, tasks_of
from emberge_standard.score_store import ScoreStore, file_name
from emberge_standard.score_table import GROUPS, means, select, table

__all__ = ["Evaluate", "ModelEntry", "scored"]

SCORES, TABLE = "scores.json", "scores.md"
Scores = dict[str, dict[str, TaskScore]]


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model to score, and what to call it in tables (its step's id, hub id or folder by default)."""

    model: ModelRef
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluate(Step):
    """Score models on tasks, and say which differences are more than chance.

    Every model is scored by every evaluator; what was scored before is not scored again. Differences from
    the first model come with 95 % intervals of a paired bootstrap over `resamples` draws. `require` are
    claims that must hold: if one does not, the scores are still published and the run ends with exit code 3.

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
        models, by_reference = self._resolve(workspace)
        plans = [evaluator.plan(workspace) for evaluator in self.evaluators]
        tasks = [task for plan in plans for task in plan]
        self._hold_together(tasks)
        scores = self._score(models, plans, workspace)
        result = self._judged(models, tasks, scores, by_reference, workspace)
        _write(result, scores, workspace)
        unmet = [r["text"] for r in result["requirements"] if not r["met"]]
        return Artifact(
            kind="scores",
            parents=tuple(model.fingerprint for model in models.values()),
            details={
                "scores": SCORES,
                "table": TABLE,
                "models": list(models),
                "tasks": [task.name for task in tasks],
                "means": result["means"],
                "unmet": [] if workspace.rehearsal else unmet,
            },
        )

    def _resolve(self, workspace: Workspace) -> tuple[dict[str, Model], dict[str, list[str]]]:
        """(models by the name they get in tables, those names by reference)."""
        found: dict[str, Model] = {}
        by_reference: dict[str, list[str]] = {}
        for entry in self.models:
            models = workspace.models(entry.model)
            for number, model in enumerate(models, 1):
                name = entry.name or model.name
                if entry.name and len(models) > 1:
                    name = f"{entry.name}.{number}"
                name = _free_name([name, f"{name} ({entry.model})"], found)
                found[name] = model
                by_reference.setdefault(entry.model.text, []).append(name)
        return found, by_reference

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

    def _judged(
        self,
        models: Mapping[str, Model],
        tasks: Sequence[TaskInfo],
        scores: Scores,
        by_reference: Mapping[str, Sequence[str]],
        workspace: Workspace,
    ) -> dict[str, Any]:
        judge = Judge(tasks, scores, resamples=self.resamples, seed=workspace.seed)
        shares = {m: {t.name: mine[t.name].score for t in tasks} for m, mine in scores.items()}
        return {
            "format": 1,
            "models": [{"name": n, "fingerprint": m.fingerprint} for n, m in models.items()],
            "tasks": [_described(task, scores) for task in tasks],
            "scores": shares,
            "intervals": {
                model: {
                    task.name: interval
                    for task in tasks
                    if (interval := judge.interval(model, task, 0.95)) is not None
                }
                for model in models
            },
            "means": {model: means(tasks, shares[model]) for model in models},
            "comparisons": _comparisons(judge, list(models), tasks),
            "requirements": [
                judge.judge(requirement, demand, model, other)
                for requirement in self.require
                for demand, reference in requirement.demands()
                for model in by_reference[requirement.model.text]
                for other in by_reference[reference.text]
                if model != other
            ],
        }


def scored(
    evaluator: Evaluator, model: Model, tasks: Sequence[TaskInfo], workspace: Any
) -> Iterator[TaskScore]:
    """An evaluator's scores; it sees a whole model, whatever the model is made of."""
    from emberge import whole_model

    with whole_model(model, workspace.work, workspace.machine) as folder:
        whole = replace(model, folder=folder, adapter=None)
        yield from evaluator.evaluate(whole, tasks, workspace)


def _free_name(wanted: Sequence[str], taken: Container[str]) -> str:
    """The first wanted name that is free, or the last one with a number."""
    numbered = (f"{wanted[-1]} {number}" for number in itertools.count(2))
    return next(name for name in itertools.chain(wanted, numbered) if name not in taken)


def _stray(reference: ModelRef) -> str:
    return f"'{reference}' is in a requirement but not among the models; add it there"


def _comparisons(
    judge: Judge, models: Sequence[str], tasks: Sequence[TaskInfo]
) -> list[dict[str, Any]]:
    """Every other model against the first: over groups of tasks, then task by task."""
    groups = [(label, select(tasks, label)) for label in GROUPS]
    groups += [(task.name, [task]) for task in tasks]
    return [
        asdict(judge.compare(model, models[0], chosen, label, 0.95))
        for model in models[1:]
        for label, chosen in groups
        if chosen
    ]


def _described(task: TaskInfo, scores: Scores) -> dict[str, Any]:
    """A task as it stands in the result, with what a resampling drew."""
    units = next(iter(scores.values()))[task.name].units
    plain = {key: value for key, value in asdict(task).items() if key != "fingerprint"}
    return {
        **plain,
        "languages": list(task.languages),
        "unit": units.unit if units else None,
        "units": len(units.values) if units else None,
    }


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
