"""The `evaluate` step: scores of models, their comparison, and the recipe's requirements."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from emberge import (
    ALL_KINDS,
    Artifact,
    Backbone,
    Evaluator,
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
from emberge.wording import count_noun, join_some, make_file_name, to_markdown

from emberge_evaluate.columns import Column, find_incomplete_column_problems, split_columns
from emberge_evaluate.markdown_scores import draw_scores
from emberge_evaluate.requirements import Requirement
from emberge_evaluate.score_result import build_scores, find_forgetting_group
from emberge_evaluate.scores import ColumnKey
from emberge_evaluate.scores_file import SCORES_FILE, write_scores
from emberge_evaluate.scoring import (
    ModelScoring,
    Plans,
    build_scoring_parts,
    choose_evaluators,
    choose_free_name,
    find_unknown_words,
    map_scoring_parts,
    plan_tasks,
    preview_tasks,
    read_part_scores,
    score_model,
)
from emberge_evaluate.task_groups import DOMAIN_BY_WORD

TABLE_FILE = "scores.md"


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
    these steps side by side. Scores of the same files are used again; a renamed step writes other files.

    Evaluators give scores (higher is better), or all of them give losses of one kind. Differences from the
    first model have 95 % intervals of a paired bootstrap over 4,000 draws; `compare` adds differences of
    further pairs of models. Models that differ only in `seed` are compared as one model, with the spread of
    the seeds in the intervals. Each size of embeddings of an evaluator (`dims`) has its own column, such as
    `model@256`. Each seed of an evaluator has the column `model#seed`; the seeds are compared as one model.
    Training costs are given if the models' steps state them. `require` has claims that must be true: if a
    claim is false, the scores are still published and the run ends with exit code 3.

    *Forgetting* is how much lower than its base a model scores on tasks outside all training domains: those
    with `domain: elsewhere` in their catalogue, or, if there are none, the tasks out of domain. The base is
    `base`, which is scored too; by default it is the scored model that the others were trained from.

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
    compare: tuple[tuple[ModelRef, ModelRef], ...] = ()
    """Further pairs of scored models to compare, such as `[[$boom, $full]]`: the first minus the second."""
    require: tuple[Requirement, ...] = ()
    _parts: Mapping[str, StepRef] = field(default_factory=dict)
    """Steps that score models, by reference of the model."""

    def expand(self) -> Mapping[str, Step]:
        """Return one step for each model, if there are several models."""
        parts = build_scoring_parts(
            self._references, self.evaluators, self._task_words, self._backbones
        )
        return parts if len(parts) > 1 else {"": self}

    def gather(self, parts: Mapping[str, StepRef]) -> Step:
        return replace(self, _parts=map_scoring_parts(self._references, parts))

    @property
    def _entries(self) -> tuple[EvaluatedModel, ...]:
        """The recipe's models, followed by its base if that is not among them."""
        if self.base is None or self.base in [entry.model for entry in self.models]:
            return self.models
        return (*self.models, EvaluatedModel(model=self.base))

    @property
    def _references(self) -> list[ModelRef]:
        return [entry.model for entry in self._entries]

    @property
    def _backbones(self) -> dict[str, Backbone]:
        """Backbones of models that the evaluators do not load by their own, by the reference's text."""
        return {
            entry.model.text: entry.backbone for entry in self.models if entry.backbone is not None
        }

    @property
    def _task_words(self) -> tuple[str, ...]:
        """Words for tasks in the requirements."""
        return tuple(sorted({requirement.tasks for requirement in self.require}))

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.models:
            yield context.problem("there is no model to score", "models")
        if not self.evaluators:
            yield context.problem("there is no evaluator", "evaluators")
        yield from self._check_models(context)
        for option, message in (*self._find_require_problems(), *self._find_compare_problems()):
            yield context.problem(message, option)
        yield from self._check_evaluators(context)

    def _check_evaluators(self, context: Preflight) -> Iterator[Problem]:
        """Yield problems of the evaluators and of the tasks that are known before the run."""
        folders = [context.model(entry.model) for entry in self._entries]
        present_folders = [folder for folder in folders if folder is not None]
        for evaluator in self.evaluators:
            yield from evaluator.check(context)
            for note in evaluator.check_together(present_folders):
                yield context.warning(note, "evaluators")
        tasks = preview_tasks(self.evaluators, context)
        if tasks is not None:
            for option, message in self._find_task_problems(tasks):
                yield context.problem(message, option)
            words = [word for word in self._task_words if word not in DOMAIN_BY_WORD]
            for message in find_unknown_words(words, tasks):
                yield context.problem(message, "require")

    def _check_models(self, context: Preflight) -> Iterator[Problem]:
        if not self._parts:  # its scoring steps check their models themselves
            for entry in self._entries:
                evaluators = choose_evaluators(self.evaluators, entry.backbone)
                yield from ModelScoring(model=entry.model, evaluators=evaluators).check(context)
        entry_counts = Counter((entry.model.text, entry.name) for entry in self.models)
        for (text, _), count in entry_counts.items():
            if count > 1:
                yield context.problem(f"model '{text}' is named {count} times", "models")
        for text, backbone in self._backbones.items():
            entries = [entry for entry in self.models if entry.model.text == text]
            if any(entry.backbone != backbone for entry in entries):
                yield context.problem(
                    f"model '{text}' is named with several backbones; take one", "models"
                )

    def _find_require_problems(self) -> Iterator[tuple[str, str]]:
        """Yield (option, problem) for each contradiction in a requirement, and for models not scored."""
        for requirement in self.require:
            for message in requirement.find_problems():
                yield "require", message
            for reference in requirement.list_references():
                if reference not in self._references:
                    message = (
                        f"'{reference}' is in a requirement but not among the models; add it there"
                    )
                    yield "require", message
            if requirement.forgetting is not None and self.base is None:
                yield (
                    "require",
                    "a requirement on forgetting is about the base; name it under 'base', and it is scored "
                    "too",
                )

    def _find_compare_problems(self) -> Iterator[tuple[str, str]]:
        """Yield (option, problem) for each compared model that is not scored or is compared with itself."""
        for row, pair in enumerate(self.compare):
            for position, reference in enumerate(pair):
                if reference not in self._references:
                    message = f"'{reference}' is compared but not among the models; add it there"
                    yield f"compare.{row}.{position}", message
            if pair[0] == pair[1]:
                yield f"compare.{row}", f"'{pair[0]}' is compared with itself; name two models"

    def _find_task_problems(self, tasks: Sequence[TaskInfo]) -> Iterator[tuple[str, str]]:
        """Yield (option, problem) for each reason why the tasks cannot share a table or be judged."""
        losses = [task.name for task in tasks if task.less_is_better]
        if losses and len({task.metric for task in tasks}) > 1:
            yield (
                "evaluators",
                f"{join_some(losses)}: a loss, which has no mean with what else is evaluated here; put each "
                "kind of loss into an evaluation of its own",
            )
        for message in find_incomplete_column_problems(tasks):
            yield "evaluators", message

    def run(self, workspace: Workspace) -> Artifact:
        models = self._find_models(workspace)
        plans = plan_tasks(self.evaluators, workspace, task_words=self._task_words)
        tasks = list(_add_notes(plans, models))
        if problems := [message for _, message in self._find_task_problems(tasks)]:
            raise RecipeError("\n".join(problems))
        self._require_forgetting(tasks)
        scores = self._score_models(models, plans, tasks, workspace)
        scored = split_columns(models, tasks, scores)
        result = build_scores(
            scored, self.require, base=self.base, compare=self.compare, seed=workspace.seed
        )
        write_scores(workspace.folder, result)
        text = draw_scores(result)
        for warning in _find_domain_warnings(plans, models):
            workspace.warn(warning)
            text += f"\n- {to_markdown(warning)}\n"
        (workspace.folder / TABLE_FILE).write_text(text, encoding="utf-8")
        _write_results(scores, workspace)
        unmet = tuple(verdict.text for verdict in result.requirements if not verdict.met)
        required = count_noun(len(result.requirements), "requirement")
        return Artifact(
            kind="scores",
            parents=tuple(column.model.fingerprint for column in models),
            details={
                "scores": SCORES_FILE,
                "models": [column.name for column in models],
                "tasks": [task.name for task in scored.tasks],
                "in_domain": [task.name for task in scored.tasks if task.domain == "in"],
                "means": result.means,
            },
            table=TABLE_FILE,
            unmet=unmet,
            note=f"{len(unmet)} of {required} not met" if unmet else "",
        )

    def _score_models(
        self,
        models: Sequence[Column],
        plans: Plans,
        tasks: Sequence[TaskInfo],
        workspace: Workspace,
    ) -> dict[str, dict[str, TaskScore]]:
        """Return each model's scores by the tasks' labels, from its scoring step if that has them all."""
        scores: dict[str, dict[str, TaskScore]] = {}
        for number, column in enumerate(models, 1):
            part = self._parts.get(column.reference.text)
            part_scores = read_part_scores(part, column.model, tasks, workspace)
            scores[column.name] = part_scores or score_model(
                column.model,
                self._choose_plans(column.reference, plans, workspace),
                workspace,
                name=column.name,
                number=number,
                of=len(models),
            )
        return scores

    def _choose_plans(self, reference: ModelRef, plans: Plans, workspace: Workspace) -> Plans:
        """Return the evaluators and tasks for a model, which may have its own backbone."""
        backbone = self._backbones.get(reference.text)
        if backbone is None:
            return plans
        evaluators = choose_evaluators(self.evaluators, backbone)
        return plan_tasks(evaluators, workspace, task_words=self._task_words)

    def _require_forgetting(self, tasks: Sequence[TaskInfo]) -> None:
        """Refuse a requirement on forgetting that no task can show."""
        is_required = any(requirement.forgetting is not None for requirement in self.require)
        if is_required and find_forgetting_group(tasks) is None:
            raise RecipeError(
                "forgetting is required, and no task is known to be of a domain that no training had; give "
                "`domain: elsewhere` in the catalogue of such tasks"
            )

    def _find_models(self, workspace: Workspace) -> list[Column]:
        """Return a column for each model, by a name of its own in tables."""
        columns: dict[str, Column] = {}
        for entry in self._entries:
            models = workspace.models(entry.model)
            for number, model in enumerate(models, 1):
                column = Column(ColumnKey(model.name), entry.model, model, entry.name)
                wanted_name = _choose_name(column, number if len(models) > 1 else None)
                name = choose_free_name([wanted_name, f"{wanted_name} ({entry.model})"], columns)
                columns[name] = replace(column, key=ColumnKey(name))
        return list(columns.values())


def _add_notes(plans: Plans, models: Sequence[Column]) -> Iterator[TaskInfo]:
    """Yield all tasks, with a note on each whose scores of these models cannot be compared."""
    for evaluator, plan in plans:
        notes = list(evaluator.check_together([column.model.folder for column in models]))
        for task in plan:
            yield replace(task, note="; ".join([*([task.note] if task.note else ()), *notes]))


def _find_domain_warnings(plans: Plans, models: Sequence[Column]) -> Iterator[str]:
    """Yield a warning if models were trained on some of the sets that catalogues call in domain only."""
    trainings = [one for c in models for one in c.model.list_trainings("").values()]
    trained_on = {name for training in trainings for name in training.datasets}
    for evaluator, plan in plans:
        if getattr(evaluator, "in_domain_of", None) == ():
            in_domain = {task.name.removesuffix("-dev") for task in plan if task.domain == "in"}
            others = sorted(in_domain - trained_on)
            if 0 < len(others) < len(in_domain):
                yield (
                    f"{join_some(others)}: in domain as their catalogue says, but no model here was trained "
                    "on a set of that name; with in_domain_of, the training data decides"
                )


def _choose_name(column: Column, number: int | None) -> str:
    """Return the recipe's name of a model, with its number if several models share the name."""
    if column.recipe_name is None:
        return column.key.model
    if number is not None:
        return f"{column.recipe_name}.{number}"
    return f"{column.recipe_name}.{column.seeds}" if column.seeds else column.recipe_name


def _write_results(scores: Mapping[str, Mapping[str, TaskScore]], workspace: Workspace) -> None:
    """Write the evaluators' own results of every model and task."""
    for model, model_scores in scores.items():
        folder = workspace.folder / "results" / make_file_name(model)
        folder.mkdir(parents=True, exist_ok=True)
        for label, score in model_scores.items():
            text = json.dumps(score.result, indent=1, ensure_ascii=False)
            (folder / f"{make_file_name(label)}.json").write_text(text, encoding="utf-8")
