"""Scoring of models by evaluators: scores in the store are read, missing scores are computed and stored."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from emberge import Evaluator, Model, RecipeError, TaskInfo, TaskScore, Units, Workspace
from emberge.files import write_text
from emberge.wording import make_file_name

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
    locate = _locate_scores(evaluator, model, workspace)
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


def _locate_scores(
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
