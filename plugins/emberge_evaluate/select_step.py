"""The `select` step: the best of several models by their scores on development data."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from emberge.wording import count_noun, join_some, make_file_name

from emberge_evaluate.comparison import ArmComparison
from emberge_evaluate.mean_loss import LOSS
from emberge_evaluate.model_ranking import Ranked, Selection, rank_models
from emberge_evaluate.score_result import find_cost
from emberge_evaluate.scoring import (
    ModelScoring,
    choose_free_name,
    find_unknown_words,
    plan_tasks,
    preview_tasks,
    score_model,
)
from emberge_evaluate.task_groups import DOMAIN_BY_WORD, GROUP_BY_WORD, average_scores

CHECKPOINTS = "checkpoints"
Candidates = Mapping[str, tuple[ModelRef, Model]]


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
            yield from ModelScoring(model=reference, evaluators=self.evaluators).check(context)
        for text, count in Counter(reference.text for reference in self.models).items():
            if count > 1:
                yield context.problem(f"model '{text}' is named {count} times", "models")
        counts = [_count_of(reference, context) for reference in self.models]
        known_counts = [count for count in counts if count is not None]
        if self.models and len(known_counts) == len(counts) and sum(known_counts) < self.top:
            yield context.problem(self._explain_count(sum(known_counts)), "top")

    def _check_tasks(self, context: Preflight) -> Iterator[Problem]:
        for evaluator in self.evaluators:
            yield from evaluator.check(context)
        tasks = preview_tasks(self.evaluators, context)
        for option, message in self._find_ranking_problems(tasks) if tasks else ():
            if option != "tasks" or self.tasks not in DOMAIN_BY_WORD:
                yield context.problem(message, option)

    def _find_ranking_problems(self, tasks: Sequence[TaskInfo]) -> Iterator[tuple[str, str]]:
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

    def _explain_count(self, count: int, duplicates: int = 0) -> str:
        """Return the message for fewer models than `top`; `duplicates` are equal to others."""
        equal = f" ({duplicates} more equal to others)" if duplicates else ""
        return (
            f"top: {self.top} of {count_noun(count, 'model')}{equal} cannot be chosen; "
            "lower top, name more models, or have the training keep more (keep_last, save_steps)"
        )

    def run(self, workspace: Workspace) -> Artifact:
        plans = plan_tasks(self.evaluators, workspace)
        tasks = [task for _, plan in plans for task in plan]
        if problems := [message for _, message in self._find_ranking_problems(tasks)]:
            raise RecipeError("\n".join(problems))
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
        group = GROUP_BY_WORD.get(self.tasks, self.tasks)
        ranking = rank_models(
            {name: average_scores(tasks, row, group) for name, row in scores.items()},
            less_is_better=self.metric == LOSS,
        )
        values = {
            name: {label: score.score for label, score in row.items()}
            for name, row in scores.items()
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
        """Return (reference, model) by name in tables, with the first of models with equal content."""
        candidates: dict[str, tuple[ModelRef, Model]] = {}
        contents: set[str] = set()
        duplicates = 0
        for reference in self.models:
            for model in workspace.models(reference):
                if model.fingerprint in contents:
                    duplicates += 1
                    continue
                contents.add(model.fingerprint)
                name = choose_free_name([model.name, f"{model.name} ({reference})"], candidates)
                candidates[name] = reference, model
        if len(candidates) < self.top:
            raise RecipeError(self._explain_count(len(candidates), duplicates))
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
        judge = ArmComparison(tasks, {name: scores[name] for name in pair}, seed=seed)
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
    for number, ranked in enumerate(selection.chosen):
        workspace.progress(number, len(selection.chosen), "models", ranked.name)
        file = _choose_free_path(f"{CHECKPOINTS}/{make_file_name(ranked.name)}", files.values())
        files[ranked.name] = file
        _copy_model(candidates[ranked.name], workspace.folder / file, workspace)
    copy_model(workspace.folder / files[selection.chosen[0].name], workspace.folder, link=True)
    return files


def _choose_free_path(path: str, taken: Iterable[str]) -> str:
    """Return the path, with a number if it is taken; compared without case."""
    folded = {one.casefold() for one in taken}
    numbered = (f"{path}-{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain([path], numbered) if one.casefold() not in folded)


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
    best = chosen_models[0].artifact
    # The artifact is about all chosen models: a merge that weighs by size must not confuse their sizes.
    sizes = {model.size for model in chosen_models}
    behind = [m.list_trainings(ref.step or name) for name, (ref, m) in candidates.items()]

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
            "training_cost": asdict(cost) if (cost := find_cost(best)) else None,
        },
        origin="chosen",
        base=best.base if best is not None else None,
        trainings={n: one for each in behind for n, one in each.items()} if all(behind) else {},
        figures=(selection.build_figure(),),
    )
