"""Scoring of models by evaluators, each model in a step of its own if an evaluation has several.

Scores in the store of all steps are read; missing scores are computed and stored.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

from emberge import (
    ALL_KINDS,
    Artifact,
    Backbone,
    Evaluator,
    Model,
    ModelRef,
    Preflight,
    Problem,
    RecipeError,
    Step,
    StepRef,
    TaskInfo,
    TaskScore,
    Units,
    Workspace,
)
from emberge.files import write_text
from emberge.wording import join_some, make_file_name

from emberge_evaluate.task_groups import find_required_tasks

Plans = Sequence[tuple[Evaluator, Sequence[TaskInfo]]]


def plan_tasks(
    evaluators: Sequence[Evaluator], workspace: Workspace, *, task_words: Sequence[str] = ()
) -> Plans:
    """Return every evaluator with its tasks; `task_words` are the words for tasks that requirements use.

    Raises:
        RecipeError: if two tasks have the same label, or a word in `task_words` means no task.
    """
    plans = [(evaluator, evaluator.plan(workspace)) for evaluator in evaluators]
    tasks = [task for _, plan in plans for task in plan]
    for label, count in Counter(task.label for task in tasks).items():
        if count > 1:
            raise RecipeError(f"{count} evaluators give a task called '{label}'; leave one out")
    for word in task_words:
        find_required_tasks(word, tasks)
    return plans


def score_model(
    model: Model, plans: Plans, workspace: Workspace, *, name: str, number: int = 1, of: int = 1
) -> dict[str, TaskScore]:
    """Return a model's scores by the tasks' labels, and log each as a metric `score/<label>/<name>`.

    The model is the one with this `number`, from 1, `of` the step's models, for the progress report.
    """
    scores: dict[str, TaskScore] = {}
    for column, (evaluator, tasks) in enumerate(plans, 1):
        with (
            workspace.part("model", number, of, name if of > 1 else ""),
            workspace.part("evaluator", column, len(plans)),
        ):
            scores |= score_tasks(evaluator, model, tasks, workspace)
    for label, score in scores.items():
        workspace.metric(f"score/{label}/{name}", score.score)
    return scores


def score_tasks(
    evaluator: Evaluator, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
) -> dict[str, TaskScore]:
    """Return a model's scores by the tasks' labels; those in the store of all steps are not computed again.

    The evaluator gets the folder of a complete model; an adapter is applied to its base first.
    """
    locate = _build_store_locator(evaluator, model, workspace)
    scores = {t.label: read_score(locate(t), t) if t.fingerprint else None for t in tasks}
    missing = [task for task in tasks if scores[task.label] is None]
    if missing:
        with workspace.whole_model(model) as folder:
            whole_model = replace(model, folder=folder, adapter=None)
            for score in evaluator.evaluate(whole_model, missing, workspace):
                if score.task.fingerprint:
                    write_score(locate(score.task), model, score)
                scores[score.task.label] = score
    return {label: score for label, score in scores.items() if score is not None}


def _build_store_locator(
    evaluator: Evaluator, model: Model, workspace: Workspace
) -> Callable[[TaskInfo], Path]:
    """Return the function that names the file of a task's score in the store of all steps.

    Files are `<model's fingerprint>/<task>-<fingerprint>.json`. A fingerprint hashes the task, and the plugin
    files and revisions behind the evaluator; the score of a task without one is not kept.
    """
    folder = workspace.store / "scores" / make_file_name(model.fingerprint)
    code = "\n".join(
        f"{component.full_name} {component.source.content} {revision}"
        for component, revision in workspace.plugins.map_revisions(evaluator).items()
        if component.source.content or revision != 1  # others change with the release alone
    )

    def locate(task: TaskInfo) -> Path:
        fingerprint = sha256(f"{task.fingerprint} {code}".encode()).hexdigest()
        return folder / f"{make_file_name(task.label)}-{fingerprint[:32]}.json"

    return locate


def read_score(path: Path, task: TaskInfo) -> TaskScore | None:
    """Return the score on a task in a file; None if the file is missing or damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        units = Units(**record["units"]) if record["units"] else None
        return TaskScore(task, float(record["score"]), units, record["result"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the score is computed again


def write_score(path: Path, model: Model, score: TaskScore) -> None:
    """Write a score into a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "model": model.name,
        "task": dataclasses.asdict(score.task),
        "score": score.score,
        "units": dataclasses.asdict(score.units) if score.units else None,
        "result": score.result,
    }
    write_text(path, json.dumps(record))


@dataclass(frozen=True, kw_only=True)
class ModelScoring(Step):
    """Scores, on all tasks of some evaluators, of the models that one reference names."""

    produces = "file"
    embedding_kinds = ALL_KINDS

    model: ModelRef
    evaluators: tuple[Evaluator, ...]
    task_words: tuple[str, ...] = ()
    """Words for tasks in requirements; a word that matches no task is refused before the scoring."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        for evaluator in self.evaluators:
            for message in evaluator.check_model(folder, context):
                yield context.problem(f"{self.model}: {message}", "evaluators")
            backbone = getattr(evaluator, "backbone", None)
            if backbone is None or folder is None:
                continue
            facts = backbone.describe(folder)
            if facts.untrained:
                yield context.problem(
                    f"{self.model}: has no {join_some(facts.untrained)}, so {type(backbone).__name__} would "
                    "score it with random weights; train it with this backbone first, or take the backbone "
                    "of its own kind",
                    "evaluators",
                )
            for warning in facts.warnings:
                yield context.warning(warning, "evaluators")

    def run(self, workspace: Workspace) -> Artifact:
        plans = plan_tasks(self.evaluators, workspace, task_words=self.task_words)
        models = workspace.models(self.model)
        scores: dict[str, dict[str, float]] = {}
        for number, model in enumerate(models, 1):
            model_scores = score_model(
                model, plans, workspace, name=model.name, number=number, of=len(models)
            )
            for score in model_scores.values():
                write_score(_locate_part_score(workspace.folder, model, score.task), model, score)
            scores[model.name] = {label: score.score for label, score in model_scores.items()}
        parents = tuple(model.fingerprint for model in models)
        return Artifact(kind="file", parents=parents, details={"scores": scores})


def build_scoring_parts(
    models: Sequence[ModelRef],
    evaluators: tuple[Evaluator, ...],
    task_words: tuple[str, ...] = (),
    backbones: Mapping[str, Backbone] = MappingProxyType({}),
) -> Mapping[str, ModelScoring]:
    """Return a step for each reference that scores its models, by the partial step's name.

    `backbones` are those of models that the evaluators do not load by their own, by the reference's text.
    """
    named = {reference.text: reference for reference in models}
    return {
        name: ModelScoring(
            model=named[text],
            evaluators=choose_evaluators(evaluators, backbones.get(text)),
            task_words=task_words,
        )
        for text, name in ModelRef.name_parts(models).items()
    }


def choose_evaluators(
    evaluators: tuple[Evaluator, ...], backbone: Backbone | None
) -> tuple[Evaluator, ...]:
    """Return the evaluators with another backbone where they have one; as they are for None."""
    if backbone is None:
        return evaluators
    changes: dict[str, Any] = {"backbone": backbone}
    return tuple(replace(one, **changes) if hasattr(one, "backbone") else one for one in evaluators)


def preview_tasks(evaluators: Sequence[Evaluator], context: Preflight) -> Sequence[TaskInfo] | None:
    """Return the tasks of all evaluators before the run; None if an evaluator does not know its tasks yet."""
    all_tasks: list[TaskInfo] = []
    for evaluator in evaluators:
        tasks = evaluator.preview(context)
        if tasks is None:
            return None
        all_tasks += tasks
    return all_tasks


def find_unknown_words(words: Sequence[str], tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem for each word of a recipe that matches no task."""
    for word in words:
        try:
            find_required_tasks(word, tasks)
        except RecipeError as error:
            yield str(error)


def map_scoring_parts(
    models: Sequence[ModelRef], parts: Mapping[str, StepRef]
) -> Mapping[str, StepRef]:
    """Map each reference's text to the step of `build_scoring_parts` that scores it."""
    return {text: parts[name] for text, name in ModelRef.name_parts(models).items()}


def read_part_scores(
    part: StepRef | None, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
) -> dict[str, TaskScore] | None:
    """Return a model's scores by label from its scoring step; None if any is missing or unreadable."""
    if part is None:
        return None
    folder, _ = workspace.artifact(part)
    stored_scores = {
        task.label: read_score(_locate_part_score(folder, model, task), task) for task in tasks
    }
    complete = {label: score for label, score in stored_scores.items() if score is not None}
    return complete if len(complete) == len(stored_scores) else None


def choose_free_name(names: Sequence[str], taken: Container[str]) -> str:
    """Return the first of the names that is not taken, or the last one with a number."""
    numbered = (f"{names[-1]} {number}" for number in itertools.count(2))
    return next(name for name in itertools.chain(names, numbered) if name not in taken)


def _locate_part_score(folder: Path, model: Model, task: TaskInfo) -> Path:
    return folder / make_file_name(model.fingerprint) / f"{make_file_name(task.label)}.json"
