"""Scoring of models by evaluators: scores in the store are read, missing scores are computed and stored."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from emberge.contracts import Evaluator, Model, TaskInfo, TaskScore, Units, Workspace
from emberge.errors import RecipeError
from emberge.evaluating.task_groups import required_tasks
from emberge.files import write_text

_MANY_TIES = 0.1  # share of tied scores from which a score is in part one of chance
Plans = Sequence[tuple[Evaluator, Sequence[TaskInfo]]]


def plan_tasks(
    evaluators: Sequence[Evaluator], workspace: Workspace, *, about: Sequence[str] = ()
) -> Plans:
    """Return every evaluator with its tasks; `about` are the task names that requirements use.

    Raises:
        RecipeError: if two tasks have the same name, or a word in `about` means no task.
    """
    plans = [(evaluator, evaluator.plan(workspace)) for evaluator in evaluators]
    tasks = [task for _, plan in plans for task in plan]
    for name, count in Counter(task.name for task in tasks).items():
        if count > 1:
            raise RecipeError(f"{count} evaluators give a task called '{name}'; leave one out")
    for word in about:
        required_tasks(word, tasks)
    return plans


def score_model(
    model: Model, plans: Plans, workspace: Workspace, *, name: str, place: int = 0, of: int = 1
) -> dict[str, TaskScore]:
    """Return a model's scores by task, and log each as a metric `score/<task>/<name>`.

    `place` is the model's position, from 0, among the `of` models of the step, for the progress report.
    """
    scores: dict[str, TaskScore] = {}
    for column, (evaluator, tasks) in enumerate(plans):
        with (
            workspace.part("model", place + 1, of, name if of > 1 else ""),
            workspace.part("evaluator", column + 1, len(plans)),
        ):
            scores |= score_tasks(evaluator, model, tasks, workspace)
    for task, score in scores.items():
        workspace.metric(f"score/{task}/{name}", score.score)
    return scores


def note_scores(task: TaskInfo, scores: Mapping[str, TaskScore], workspace: Workspace) -> TaskInfo:
    """Return a task with notes on the scores of models by name, and warn of them: ties, several releases."""
    notes = [
        f"{score.tied:.0%} of the scores that {name} gives to texts are tied, and chance orders tied "
        "texts; the model does not tell them apart"
        for name, score in scores.items()
        if score.tied > _MANY_TIES
    ]
    releases: dict[str, list[str]] = {}
    for name, score in scores.items():
        releases.setdefault(score.release, []).append(name)
    if len(releases) > 1:
        by = (f"{', '.join(names)} by {release}" for release, names in releases.items())
        notes.append(f"scored {'; '.join(by)}, whose scores may differ; score all by one release")
    for note in notes:
        workspace.warn(f"{task.name}: {note}")
    return replace(task, note="; ".join(filter(None, [task.note, *notes])))


def score_tasks(
    evaluator: Evaluator, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
) -> dict[str, TaskScore]:
    """Return a model's scores by task; scores in the store of all steps are not computed again.

    The evaluator gets the folder of a complete model; an adapter is applied to its base first.
    """
    store = ScoreStore(workspace.store / "scores", _identify_code(evaluator, workspace.plugins))
    scores = {task.name: store.read(model, task) for task in tasks}
    missing = [task for task in tasks if scores[task.name] is None]
    if missing:
        with workspace.whole_model(model) as folder:
            whole_model = replace(model, folder=folder, adapter=None)
            for score in evaluator.evaluate(whole_model, missing, workspace):
                store.write(model, score)
                scores[score.task.name] = score
    return {name: score for name, score in scores.items() if score is not None}


class ScoreStore:
    """Folder of scores, `<model's fingerprint>/<task>-<task's fingerprint>.json`.

    `code` identifies the plugin files and revisions behind the evaluator; if it is not empty, it is part of
    the fingerprint.
    """

    def __init__(self, folder: Path, code: str = "") -> None:
        self.folder, self.code = folder, code

    def read(self, model: Model, task: TaskInfo) -> TaskScore | None:
        """Return the stored score of a model on a task; None if there is no readable score."""
        return read_score(self._build_path(model, task), task) if task.fingerprint else None

    def write(self, model: Model, score: TaskScore) -> None:
        """Store a score, so that a killed evaluation does not compute it again."""
        if score.task.fingerprint:
            write_score(self._build_path(model, score.task), model, score)

    def _build_path(self, model: Model, task: TaskInfo) -> Path:
        fingerprint = task.fingerprint
        if self.code:
            fingerprint = sha256(f"{fingerprint} {self.code}".encode()).hexdigest()
        name = f"{safe_file_name(task.name)}-{fingerprint[:32]}.json"
        return self.folder / safe_file_name(model.fingerprint) / name


def _identify_code(evaluator: Evaluator, plugins: Any) -> str:
    """Return the hash of plugin files and revisions behind an evaluator and the components in its options.

    It is "" if all of them are of installed plugins and of revision 1.
    """
    marks = [
        f"{component.full_name} {component.source.content} {revision}"
        for component, revision in plugins.components_behind(evaluator).items()
        if component.source.content or revision != 1
    ]
    return sha256("\n".join(marks).encode()).hexdigest() if marks else ""


def read_score(path: Path, task: TaskInfo) -> TaskScore | None:
    """Return the score on a task in a file; None if the file is missing or damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        units = Units(**record["units"]) if record["units"] else None
        return TaskScore(
            *(task, float(record["score"]), units, record["result"]),
            tied=float(record["tied"]),
            release=str(record["release"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the score is computed again


def write_score(path: Path, model: Model, score: TaskScore) -> None:
    """Write a score into a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "model": model.name,
        "task": dataclasses.asdict(score.task),
        "score": score.score,
        "units": dataclasses.asdict(score.units) if score.units else None,
        "result": score.result,
        "tied": score.tied,
        "release": score.release,
    }
    write_text(path, json.dumps(record))


def safe_file_name(text: str) -> str:
    """Return a text as a file name that every file system accepts."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip(".") or "_"
