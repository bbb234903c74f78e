"""The `evaluate` step: scores of models, their comparison, and the recipe's requirements."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
from emberge.evaluating import (
    SCORES_FILE,
    Scores,
    note_scores,
    plan_tasks,
    safe_file_name,
    score_model,
    write_scores,
)
from emberge.wording import join_some

from emberge_evaluate.forgetting import forgetting_group, mark_elsewhere
from emberge_evaluate.requirements import Requirement
from emberge_evaluate.score_columns import (
    ScoredModels,
    column_problems,
    split_columns,
    tasks_of_columns,
)
from emberge_evaluate.score_model import (
    DOMAINS,
    ScoreModel,
    choose_evaluators,
    free_name,
    parts_by_model,
    scores_of_part,
    scoring_parts,
    tasks_ahead,
    unknown_words,
)
from emberge_evaluate.score_result import scores_of
from emberge_evaluate.score_table import table
from emberge_evaluate.seed_groups import Scored

TABLE = "scores.md"
_RESAMPLES = 4000
TaskScores = dict[str, dict[str, TaskScore]]
_Plans = Sequence[tuple[Evaluator, Sequence[TaskInfo]]]
_NO_BASE = (
    "a requirement on forgetting is about the base; name it under 'base', and it is scored too"
)


@dataclass(frozen=True, kw_only=True)
class EvaluatedModel:
    """Model to score, and its name in tables (its step's id, hub id or folder by default).

    The models of a `foreach` over `seed` are an arm. They are pooled: the table has their mean, its spread
    and its differences from other arms.

    `backbone` loads the model, by default as the evaluators say: `{model: $sparse, backbone: splade}`.
    """

    model: ModelRef
    name: str | None = None
    backbone: Backbone | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluate(Step):
    """Scores of models on tasks, and tests of their differences against chance.

    Every model is scored by every evaluator. Each model has its own step, `id.model=name`, and launchers run
    these steps side by side. Stored scores are used again. Evaluators give scores (higher is better), or all
    of them give losses of one kind. Differences from the first model have 95 % intervals of a paired
    bootstrap over 4,000 draws; `compare` adds differences of further pairs of models. Models that
    differ only in `seed` are compared as one model, with the spread of the seeds in the intervals. Each
    size of embeddings of an evaluator (`dims`) has its own column, such as `model@256`, and a curve shows all
    of them. Each seed of an evaluator has the column `model#seed`; the seeds are compared as one model.
    Training costs are given if the models' steps state them. `require` has claims that must be true: if a
    claim is false, the scores are still published and the run ends with exit code 3.

    *Forgetting* is how much lower than its base a model scores on tasks outside all training domains. These
    tasks are `elsewhere`, by this option or by the `domain` in their catalogue; if there are none, they are
    the tasks out of domain. The base is `base`, which is scored too; by default it is the scored model that
    the others were trained from.

    The result has `scores.json` (scores, intervals, means, comparisons, requirements), `scores.md` (a table,
    × 100) and the results of each evaluator as `results/<model>/<task>.json`.

    Example:
        scores:
          evaluate:
            models: [./base, ./merged]
            evaluators: {mteb: {tasks: [STS12, NFCorpus]}}
    """

    produces = "scores"
    embedding_kinds = ALL_KINDS

    models: tuple[EvaluatedModel, ...]
    """The models to score; differences are from the first."""
    evaluators: tuple[Evaluator, ...]
    """Evaluators that score them: `{mteb: {…}}`."""
    base: ModelRef | None = None
    """The model that the others were trained from; forgetting is measured against it."""
    elsewhere: tuple[str, ...] = ()
    """Tasks or kinds of task outside all training domains, or `ood` for all tasks out of domain."""
    compare: tuple[tuple[ModelRef, ModelRef], ...] = ()
    """Further pairs of scored models to compare, such as `[[$boom, $full]]`: the first minus the second."""
    require: tuple[Requirement, ...] = ()
    _parts: Mapping[str, StepRef] = field(default_factory=dict)
    """Steps that score models, by reference of the model."""

    def expand(self) -> Mapping[str, Step]:
        """Return one step for each model, if there are several models."""
        parts = scoring_parts(self._references, self.evaluators, self._about, self._backbones)
        return parts if len(parts) > 1 else {"": self}

    def gather(self, parts: Mapping[str, StepRef]) -> Step:
        return replace(self, _parts=parts_by_model(self._references, parts))

    @property
    def _entries(self) -> tuple[EvaluatedModel, ...]:
        """The recipe's models, followed by its base if that is not among them."""
        texts = {entry.model.text for entry in self.models}
        if self.base is None or self.base.text in texts:
            return self.models
        return (*self.models, EvaluatedModel(model=self.base))

    @property
    def _references(self) -> list[ModelRef]:
        return [entry.model for entry in self._entries]

    @property
    def _backbones(self) -> dict[str, Backbone]:
        """The backbones of models that are not loaded by the evaluators' own, by the reference's text."""
        return {
            entry.model.text: entry.backbone for entry in self.models if entry.backbone is not None
        }

    @property
    def _about(self) -> tuple[str, ...]:
        words = {requirement.tasks for requirement in self.require} | {*self.elsewhere}
        return tuple(sorted(words - {"elsewhere"} if self.elsewhere else words))

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.models:
            yield context.problem("there is no model to score", "models")
        if not self.evaluators:
            yield context.problem("there is no evaluator", "evaluators")
        yield from self._check_models(context)
        yield from self._check_require(context)
        for fault, option in self._check_compared_models():
            yield context.problem(fault, option)
        folders = [context.model(entry.model) for entry in self._entries]
        present_folders = [folder for folder in folders if folder is not None]
        for evaluator in self.evaluators:
            yield from evaluator.check(context)
            for note in evaluator.check_together(present_folders):
                yield context.warning(note, "evaluators")
        yield from self._check_tasks(context)

    def _check_tasks(self, context: Preflight) -> Iterator[Problem]:
        tasks = tasks_ahead(self.evaluators, context)
        if tasks is None:
            return
        for fault in _check_one_table(tasks):
            yield context.problem(fault, "evaluators")
        words = [word for word in self._about if word not in DOMAINS]
        for fault in (
            *unknown_words(words, tasks_of_columns(tasks)),
            *self._check_shares(tasks),
        ):
            yield context.problem(fault, "require")

    def _check_models(self, context: Preflight) -> Iterator[Problem]:
        if not self._parts:  # they look at their models themselves
            for entry in self._entries:
                evaluators = choose_evaluators(self.evaluators, entry.backbone)
                yield from ScoreModel(model=entry.model, evaluators=evaluators).check(context)
        entry_counts = Counter((entry.model.text, entry.name) for entry in self.models)
        for (text, _), count in entry_counts.items():
            if count > 1:
                yield context.problem(f"model '{text}' is named {count} times", "models")
        for fault in self._check_backbones():
            yield context.problem(fault, "models")

    def _check_backbones(self) -> Iterator[str]:
        """Yield a problem for each backbone of a model that would not be used."""
        for text, backbone in self._backbones.items():
            entries = [entry for entry in self.models if entry.model.text == text]
            if any(entry.backbone != backbone for entry in entries):
                yield f"model '{text}' is named with several backbones; take one"
            if not any(hasattr(evaluator, "backbone") for evaluator in self.evaluators):
                yield f"no evaluator loads '{text}' by a backbone; leave it out"

    def _check_require(self, context: Preflight) -> Iterator[Problem]:
        for requirement in self.require:
            for fault in requirement.problems():
                yield context.problem(fault, "require")
            if requirement.forgetting is not None and self.base is None:
                yield context.problem(_NO_BASE, "require")
        for stray in self._check_required_models():
            yield context.problem(stray, "require")

    def _check_compared_models(self) -> Iterator[tuple[str, str]]:
        """Yield (problem, option) for each compared model that is not scored or is compared with itself."""
        scored = {entry.model.text for entry in self._entries}
        for row, pair in enumerate(self.compare):
            for column, reference in enumerate(pair):
                if reference.text not in scored:
                    fault = f"'{reference}' is compared but not among the models; add it there"
                    yield fault, f"compare.{row}.{column}"
            if pair[0].text == pair[1].text:
                yield f"'{pair[0]}' is compared with itself; name two models", f"compare.{row}"

    def run(self, workspace: Workspace) -> Artifact:
        compared_faults = (fault for fault, _ in self._check_compared_models())
        for fault in (*self._check_required_models(), *compared_faults):
            raise RecipeError(fault)
        models = self._resolve(workspace)
        plans = plan_tasks(self.evaluators, workspace, about=self._about)
        tasks = list(_add_notes(plans, [model.folder for _, model in models.values()]))
        tasks = mark_elsewhere(tasks, self.elsewhere)
        faults = [*unknown_words(self._about, tasks_of_columns(tasks))]
        faults += [*self._check_forgetting(tasks), *self._check_shares(tasks)]
        for fault in (*_check_one_table(tasks), *faults):
            raise RecipeError(fault)
        scores: dict[str, dict[str, TaskScore]] = {}
        for place, (name, (entry, model)) in enumerate(models.items()):
            part = self._parts.get(entry.reference.text)
            scores[name] = scores_of_part(part, model, tasks, workspace) or score_model(
                *(model, self._plan_for(entry.reference, plans, workspace), workspace),
                name=name,
                place=place,
                of=len(models),
            )
        tasks = [
            note_scores(task, {m: mine[task.name] for m, mine in scores.items()}, workspace)
            for task in tasks
        ]
        # A model's own backbone is part of its tasks' fingerprints, and columns have one task each.
        scores = {
            name: {task.name: replace(mine[task.name], task=task) for task in tasks}
            for name, mine in scores.items()
        }
        columns = split_columns(ScoredModels(models, tasks, scores))
        result = scores_of(
            columns,
            self.require,
            base=self.base,
            compare=self.compare,
            resamples=_RESAMPLES,
            seed=workspace.seed,
        )
        _write_results(result, scores, workspace)
        failed_requirements = [verdict.text for verdict in result.requirements if not verdict.met]
        return Artifact(
            kind="scores",
            parents=tuple(model.fingerprint for _, model in models.values()),
            details={
                "scores": SCORES_FILE,
                "table": TABLE,
                "models": list(models),
                "tasks": [task.name for task in columns.tasks],
                "in_domain": [task.name for task in columns.tasks if task.domain == "in"],
                "means": result.means,
                "unmet": failed_requirements,
            },
        )

    def _plan_for(self, reference: ModelRef, plans: _Plans, workspace: Workspace) -> _Plans:
        """Return the evaluators and tasks for a model, which may have its own backbone."""
        backbone = self._backbones.get(reference.text)
        if backbone is None:
            return plans
        evaluators = choose_evaluators(self.evaluators, backbone)
        return plan_tasks(evaluators, workspace, about=self._about)

    def _check_forgetting(self, tasks: Sequence[TaskInfo]) -> Iterator[str]:
        """Yield a problem if forgetting is required and no task can show it."""
        if forgetting_group(tasks) is None and any(r.forgetting is not None for r in self.require):
            yield (
                "forgetting is required, and no task is known to be of a domain that no training had; name "
                "such tasks under 'elsewhere', or give `domain` in the catalogue"
            )

    def _check_shares(self, tasks: Sequence[TaskInfo]) -> Iterator[str]:
        """Yield a problem if a share of a score is required and the scores are losses."""
        if any(task.less_is_better for task in tasks) and any(r.keeps for r in self.require):
            yield (
                "keeps is a share of a score of which more is better, and these tasks are losses; use "
                "not_worse_than"
            )

    def _resolve(self, workspace: Workspace) -> dict[str, tuple[Scored, Model]]:
        """Return (the recipe's entry, model) by the model's name in tables."""
        resolved: dict[str, tuple[Scored, Model]] = {}
        for entry in self._entries:
            models = workspace.models(entry.model)
            for number, model in enumerate(models, 1):
                scored = Scored(model.name, entry.model, entry.name)
                wanted_name = _choose_name(scored, number if len(models) > 1 else None)
                name = free_name([wanted_name, f"{wanted_name} ({entry.model})"], resolved)
                resolved[name] = replace(scored, model=name), model
        return resolved

    def _check_required_models(self) -> Iterator[str]:
        """Yield a problem for each requirement on a model that is not scored."""
        scored = {entry.model.text for entry in self._entries}
        for requirement in self.require:
            for reference in requirement.references():
                if reference.text not in scored:
                    yield f"'{reference}' is in a requirement but not among the models; add it there"


def _add_notes(
    plans: Iterable[tuple[Evaluator, Sequence[TaskInfo]]], folders: Sequence[Path]
) -> Iterator[TaskInfo]:
    """Yield all tasks, with a note on each whose scores of these models cannot be compared."""
    for evaluator, plan in plans:
        notes = list(evaluator.check_together(folders))
        for task in plan:
            yield replace(task, note="; ".join([*([task.note] if task.note else ()), *notes]))


def _check_one_table(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem for each reason why the tasks cannot share one table."""
    yield from (*_check_losses(tasks), *column_problems(tasks))


def _check_losses(tasks: Sequence[TaskInfo]) -> Iterator[str]:
    """Yield a problem if some tasks give losses and others scores, whose mean would be meaningless."""
    names = [task.name for task in tasks if task.less_is_better]
    if names and len({task.metric for task in tasks}) > 1:
        yield (
            f"{join_some(names)}: a loss, which has no mean with what else is evaluated here; put each "
            "kind of loss into an evaluation of its own"
        )


def _choose_name(entry: Scored, number: int | None) -> str:
    """Return the recipe's name of a model, with its number if several models share the name."""
    if entry.called is None:
        return entry.model
    if number is not None:
        return f"{entry.called}.{number}"
    return f"{entry.called}.{entry.place}" if entry.place else entry.called


def _write_results(result: Scores, scores: TaskScores, workspace: Workspace) -> None:
    folder = workspace.folder
    write_scores(folder, result)
    (folder / TABLE).write_text(table(result), encoding="utf-8")
    for model, model_scores in scores.items():
        model_folder = folder / "results" / safe_file_name(model)
        model_folder.mkdir(parents=True, exist_ok=True)
        for task, score in model_scores.items():
            text = json.dumps(score.result, indent=1, ensure_ascii=False)
            (model_folder / f"{safe_file_name(task)}.json").write_text(text, encoding="utf-8")
