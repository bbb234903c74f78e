"""Partial step of an evaluation or selection: the scores of one model, or of a training's checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    Workspace,
)
from emberge.wording import join_some, make_file_name

from emberge_evaluate.scoring import (
    plan_tasks,
    read_score,
    score_model,
    write_score,
)
from emberge_evaluate.task_groups import find_required_tasks


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
                write_score(_locate_score(workspace.folder, model, score.task), model, score)
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
        for text, name in ModelRef.part_names(models).items()
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
    return {text: parts[name] for text, name in ModelRef.part_names(models).items()}


def read_part_scores(
    part: StepRef | None, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
) -> dict[str, TaskScore] | None:
    """Return a model's scores by label from its scoring step; None if any is missing or unreadable."""
    if part is None:
        return None
    folder, _ = workspace.artifact(part)
    stored_scores = {
        task.label: read_score(_locate_score(folder, model, task), task) for task in tasks
    }
    complete = {label: score for label, score in stored_scores.items() if score is not None}
    return complete if len(complete) == len(stored_scores) else None


def choose_free_name(names: Sequence[str], taken: Container[str]) -> str:
    """Return the first of the names that is not taken, or the last one with a number."""
    numbered = (f"{names[-1]} {number}" for number in itertools.count(2))
    return next(name for name in itertools.chain(names, numbered) if name not in taken)


def _locate_score(folder: Path, model: Model, task: TaskInfo) -> Path:
    return folder / make_file_name(model.fingerprint) / f"{make_file_name(task.label)}.json"
