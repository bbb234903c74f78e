"""The `select` step: the best of several models by their scores on development data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emberge import (
    ALL_KINDS,
    Artifact,
    Count,
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
from emberge.model_folder import copy_model
from emberge.wording import count_noun, join_some

from emberge_evaluate.comparison import Judge
from emberge_evaluate.kept_scores import make_file_name, plan_tasks, score_model
from emberge_evaluate.mean_loss import LOSS
from emberge_evaluate.score_model import (
    DOMAINS,
    ScoreModel,
    choose_free_name,
    find_unknown_words,
    preview_tasks,
)
from emberge_evaluate.scores import Interval
from emberge_evaluate.task_groups import GROUP_OF, average_scores

CHECKPOINTS = "checkpoints"
# Details of the best model's artifact about its training and the model that the training started from.
_ORIGIN = ("base", "base_reference", "base_fingerprint", "learning_rate")

Candidates = Mapping[str, tuple[ModelRef, Model]]
# Details of a training's artifact about its cost.
_FACTS = ("datasets", "examples", "seconds", "cpu_seconds")


_GROUPS = {
    "all": "the mean over tasks",
    "kinds": "the mean over kinds of task",
    "ind": "the mean over tasks in domain",
    "ood": "the mean over tasks out of domain",
}


@dataclass(frozen=True, kw_only=True)
class Select(Step):
    """Choice of the best models by their scores on development data: of a training's checkpoints, or of runs.

    Models are ranked by `tasks`: `all` (the mean over tasks), `kinds` (the mean over kinds of task), `ind`,
    `ood`, a kind of task such as retrieval, or the name of one task. The step chooses the first `top` models,
    such as the checkpoints that hierarchical fusion starts from (CoDiEmb, arXiv:2508.11442). If scores are
    equal, the model named first ranks higher. A model that is named twice counts once.

    The first model of the ranking is the result, and all chosen models are `$id.checkpoints`. They are whole
    models: adapters are merged into their bases, and models from outside the recipe are copied. Models of
    earlier steps are hard links to their files, which need no disk space and remain if an earlier result is
    removed.

    Test data is refused, as a chosen model's score on the data of the choice is too high; evaluators must set
    `split: dev`. Scores of other steps and runs are used again. The report shows the ranking and the lead of
    the best model.

    Example:
        best:
          select:
            models: [./run-1, ./run-2, ./run-3]
            evaluators: {mteb: {data: {path: ./datasets.yaml, split: dev}}}
            tasks: retrieval
            top: 2
    """

    produces = "model"
    embedding_kinds = ALL_KINDS

    models: tuple[ModelRef, ...]
    """Models to choose from, such as `$run.checkpoints`."""
    evaluators: tuple[Evaluator, ...]
    """Evaluators that score them."""
    tasks: str = "all"
    """Tasks that models are ranked by."""
    top: Count = 3
    metric: Literal["score", "loss"] = "score"
    """Kind of number: `loss` for evaluators that give losses (lower is better); a point is a hundredth."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.evaluators:
            yield context.problem("there is no evaluator", "evaluators")
        yield from self._check_models(context)
        yield from self._check_tasks(context)

    def _check_models(self, context: Preflight) -> Iterator[Problem]:
        """Yield the problems of the models' names and, if it is known, their number."""
        if not self.models:
            yield context.problem("there is no model to choose from", "models")
        for reference in self.models:
            yield from ScoreModel(model=reference, evaluators=self.evaluators).check(context)
        for text, count in Counter(reference.text for reference in self.models).items():
            if count > 1:
                yield context.problem(f"model '{text}' is named {count} times", "models")
        counts = [_count_of(reference, context) for reference in self.models]
        known_counts = [count for count in counts if count is not None]
        if self.models and len(known_counts) == len(counts) and sum(known_counts) < self.top:
            yield context.problem(self._check_count(sum(known_counts)), "top")

    def _check_tasks(self, context: Preflight) -> Iterator[Problem]:
        for evaluator in self.evaluators:
            yield from evaluator.check(context)
        tasks = preview_tasks(self.evaluators, context)
        for option, message in self._check_ranking(tasks) if tasks else ():
            if option != "tasks" or self.tasks not in DOMAINS:
                yield context.problem(message, option)

    def _check_ranking(self, tasks: Sequence[TaskInfo]) -> Iterator[tuple[str, str]]:
        """Yield (option, message) for each reason why models cannot be ranked by these tasks."""
        if test_tasks := [task.name for task in tasks if task.split == "test"]:
            yield (
                "evaluators",
                f"{join_some(test_tasks)}: a choice by test data leaves no fair score of what was chosen; "
                "give "
                "`split: dev`, or leave out what has no development data",
            )
        misfit_tasks = [task.name for task in tasks if task.less_is_better != (self.metric == LOSS)]
        if misfit_tasks:
            score_word, metric_word = (
                ("losses", "loss") if self.metric != LOSS else ("scores", "score")
            )
            yield (
                "metric",
                f"metric: {self.metric}, and {join_some(misfit_tasks)} "
                f"{'gives' if len(misfit_tasks) == 1 else 'give'} "
                f"{score_word}; write metric: {metric_word}, or leave them out",
            )
        for message in find_unknown_words([self.tasks], tasks):
            yield "tasks", message

    def _check_count(self, count: int, duplicates: int = 0) -> str:
        equal = f" ({duplicates} more equal to others)" if duplicates else ""
        return (
            f"top: {self.top} of {count_noun(count, 'model')}{equal} cannot be chosen; "
            "lower top, name more models, or have the training keep more (keep_last, save_steps)"
        )

    def run(self, workspace: Workspace) -> Artifact:
        plans = plan_tasks(self.evaluators, workspace)
        tasks = [task for _, plan in plans for task in plan]
        for _, message in self._check_ranking(tasks):
            raise RecipeError(message)
        candidates = self._list_candidates(workspace)
        for evaluator in self.evaluators:
            folders = [model.folder for _, model in candidates.values()]
            for note in evaluator.check_together(folders):
                workspace.warn(note)
        scores: dict[str, dict[str, TaskScore]] = {}
        for number, (name, (_, model)) in enumerate(candidates.items(), 1):
            scores[name] = score_model(
                model, plans, workspace, name=name, number=number, of=len(candidates)
            )
        group = GROUP_OF.get(self.tasks, self.tasks)
        ranking = rank_models(
            {name: average_scores(tasks, mine, group) for name, mine in scores.items()},
            less=self.metric == LOSS,
        )
        values = {
            name: {t: task_score.score for t, task_score in mine.items()}
            for name, mine in scores.items()
        }
        selection = Selection(
            ranking,
            self.top,
            tasks,
            values,
            by=self.tasks,
            interval=self._estimate_lead(ranking, group, tasks, scores, workspace.seed),
            losses=self.metric == LOSS,
        )
        files = _place_models(selection, candidates, workspace)
        return _make_artifact(selection, files, candidates)

    def _list_candidates(self, workspace: Workspace) -> Candidates:
        """Return (reference, model) by name in tables, with the first of models with equal content.

        Raises:
            RecipeError: if there are fewer models than `top`.
        """
        candidates: dict[str, tuple[ModelRef, Model]] = {}
        contents: set[str] = set()
        same = 0
        for reference in self.models:
            for model in workspace.models(reference):
                if model.fingerprint in contents:
                    same += 1
                    continue
                contents.add(model.fingerprint)
                name = choose_free_name([model.name, f"{model.name} ({reference})"], candidates)
                candidates[name] = reference, model
        if len(candidates) < self.top:
            raise RecipeError(self._check_count(len(candidates), same))
        return candidates

    def _estimate_lead(
        self,
        ranking: Sequence[Ranked],
        group: str,
        tasks: Sequence[TaskInfo],
        scores: Mapping[str, Mapping[str, TaskScore]],
        seed: int,
    ) -> tuple[float, float] | None:
        """Return the 95 % interval, in points, of the best model's lead over the second; None without one."""
        if len(ranking) < 2:
            return None
        pair = (ranking[0].name, ranking[1].name)
        judge = Judge(tasks, {name: scores[name] for name in pair}, seed=seed)
        interval = judge.compare(*pair, group).interval
        if interval is None:
            return None
        low, high = (100 * end for end in interval)
        return (-high, -low) if self.metric == LOSS else (low, high)


def _count_of(reference: ModelRef, context: Preflight) -> int | None:
    """Return the largest number of models that a reference can have; None if it is not known yet."""
    if reference.part is None:
        return 1
    expected_result = context.expected(reference)
    return expected_result.checkpoints if expected_result is not None else None


def _place_models(
    selection: Selection, candidates: Candidates, workspace: Workspace
) -> dict[str, str]:
    """Copy all selected models into the result, the best at its top; return their folders by name."""
    files: dict[str, str] = {}
    taken: set[str] = set()
    for number, ranked in enumerate(selection.chosen):
        workspace.progress(number, len(selection.chosen), "models", ranked.name)
        file = _free_file(make_file_name(ranked.name), taken)
        files[ranked.name] = f"{CHECKPOINTS}/{file}"
        _copy_model(candidates[ranked.name], workspace.folder / files[ranked.name], workspace)
    copy_model(workspace.folder / files[selection.chosen[0].name], workspace.folder, link=True)
    return files


def _free_file(name: str, taken: set[str]) -> str:
    """Return a free file name, compared without case, and add it to `taken`."""
    free, number = name, 2
    while free.casefold() in taken:
        free, number = f"{name}-{number}", number + 1
    taken.add(free.casefold())
    return free


def _copy_model(candidate: tuple[ModelRef, Model], out: Path, workspace: Workspace) -> None:
    reference, model = candidate
    # Results of steps do not change, so links are safe; the user may change a folder of their own later.
    link = reference.step is not None or model.adapter is not None
    with workspace.whole_model(model) as folder:
        copy_model(folder, out, link=link)


def _make_artifact(
    selection: Selection, files: Mapping[str, str], candidates: Candidates
) -> Artifact:
    chosen_models = [candidates[ranked.name][1] for ranked in selection.chosen]
    of_best = chosen_models[0].details
    # The artifact is about all chosen models: a merge that weighs by size must not confuse their sizes.
    sizes = {model.size for model in chosen_models}
    trainings = collect_trainings(
        (str(reference.step or name), model.artifact)
        for name, (reference, model) in candidates.items()
    )

    def described(ranked: Ranked) -> dict[str, Any]:
        known = {"value": ranked.value} if math.isfinite(ranked.value) else {}
        return {"model": ranked.name, **known}

    return Artifact(
        kind="model",
        size=sizes.pop() if len(sizes) == 1 else None,
        parents=(selection.chosen[0].name,),
        details={
            "chosen_from": len(selection.ranking),
            "chosen_by": selection.by,
            "chosen_because": selection.summary,
            "chosen": {files[ranked.name]: described(ranked) for ranked in selection.chosen},
            CHECKPOINTS: list(files.values()),
            "figures": [selection.figure()],
            **{key: of_best[key] for key in _ORIGIN if key in of_best},
            **({"trained": trainings} if trainings else {}),
        },
    )


def collect_trainings(
    models: Iterable[tuple[str, Artifact | None]],
) -> dict[str, Mapping[str, Any]]:
    """Map each training step's name to its facts, as in `trained` of an artifact's details.

    `models` are (step's name, artifact of its model). The result is empty if the trainings of one model are
    unknown.
    """
    facts_by_step: dict[str, Mapping[str, Any]] = {}
    for name, artifact in models:
        details = artifact.details if artifact is not None else {}
        if isinstance(details.get("trained"), Mapping):
            facts_by_step |= details["trained"]
        elif "datasets" in details:
            facts_by_step[name] = {key: details[key] for key in _FACTS if key in details}
        else:
            return {}
    return facts_by_step


@dataclass(frozen=True)
class Ranked:
    """Model with its `value`, by which models are ranked, and `behind`, its distance to the best in points.

    A point is a hundredth of a score or of a loss.
    """

    name: str
    value: float
    behind: float


def rank_models(values: Mapping[str, float], *, less: bool = False) -> tuple[Ranked, ...]:
    """Return the models from the best to the worst.

    If values are equal, the first model ranks higher. With `less` lower values are better. NaN ranks last.
    """
    oriented = {
        name: (-value if less else value) if math.isfinite(value) else -math.inf
        for name, value in values.items()
    }
    order = sorted(values, key=oriented.__getitem__, reverse=True)
    best = oriented[order[0]]
    return tuple(Ranked(name, values[name], 100 * (best - oriented[name])) for name in order)


@dataclass(frozen=True)
class Selection:
    """The first `top` models of a ranking, with all models' scores by task.

    `by` is the recipe's word for the tasks that decided, and `interval` is the interval of the best model's
    lead over the second, in points.
    """

    ranking: tuple[Ranked, ...]
    top: int
    tasks: Sequence[TaskInfo]
    scores: Mapping[str, Mapping[str, float]]
    by: str = "all"
    interval: Interval | None = None
    losses: bool = False

    @property
    def chosen(self) -> tuple[Ranked, ...]:
        """Selected models, the best first."""
        return self.ranking[: self.top]

    @property
    def summary(self) -> str:
        """Sentence on the best model and its lead."""
        best, *others = self.ranking
        count = count_noun(len(self.ranking), "model")
        value = f"{best.value:.4f}" if self.losses else f"{100 * best.value:.2f}"
        text = f"{best.name} is the best of {count} by {self._title}: {value}"
        if not others:
            return f"{text}."
        second = others[0]
        if second.behind == 0:
            return f"{text}, which {second.name} has too; of equal models the first named is taken."
        interval_text = ""
        if self.interval is not None:
            interval_text = f" (95 % interval {self.interval[0]:+.2f} to {self.interval[1]:+.2f})"
        return f"{text}, {second.behind:.2f} points ahead of {second.name}{interval_text}."

    def figure(self) -> dict[str, Any]:
        """Return the ranking as a figure of a report: what decided, and the scores on all tasks."""
        columns = [task.name for task in self.tasks if task.name != self.by]
        return {
            "title": f"Models by {self._title}",
            "caption": self.summary,
            "heat_map": {
                "rows": [ranked.name for ranked in self.ranking],
                "columns": [self.by, *columns],
                "values": [
                    [
                        self._show_value(ranked.value),
                        *(self._show_value(self.scores[ranked.name][name]) for name in columns),
                    ]
                    for ranked in self.ranking
                ],
            },
        }

    @property
    def _title(self) -> str:
        if self.by in _GROUPS:
            return _GROUPS[self.by]
        is_task = any(task.name == self.by for task in self.tasks)
        return self.by if is_task else f"the mean over tasks of kind {self.by}"

    def _show_value(self, value: float) -> float | None:
        if not math.isfinite(value):
            return None
        return round(value if self.losses else 100 * value, 4)
