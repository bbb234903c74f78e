"""Headroom of merges: rows of what the members' ensemble, and an oracle that chooses by task, would score."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from emberge import (
    Backbone,
    Evaluator,
    Model,
    ModelRef,
    RecipeError,
    TaskInfo,
    TaskScore,
    Workspace,
)
from emberge.evaluating import score_model

from emberge_evaluate.room_for_merges.ensemble import Ensemble
from emberge_evaluate.score_model import free_name
from emberge_evaluate.seed_groups import Scored

ENSEMBLE, ORACLE = "ensemble", "oracle (no model)"
HEADROOM = (ENSEMBLE, ORACLE)
TaskScores = Mapping[str, Mapping[str, TaskScore]]
Row = tuple[str, tuple[Scored, Model], Mapping[str, TaskScore]]


def headroom_problems(
    members: Sequence[ModelRef], evaluators: Sequence[Evaluator]
) -> Iterator[str]:
    """Yield what prevents the rows: too few members, and an evaluator that opens no model itself."""
    if len(members) == 1 and not members[0].text.startswith("$"):
        yield "an ensemble and a choice take at least two members; name all"
    for evaluator in evaluators if members else ():
        if not isinstance(getattr(evaluator, "backbone", None), Backbone):
            yield (
                f"{type(evaluator).__name__} has no backbone that an ensemble could run by; put it into an "
                "evaluation of its own"
            )


def headroom_rows(
    members: Mapping[str, Model],
    evaluators: Sequence[Evaluator],
    tasks: Sequence[TaskInfo],
    scores: TaskScores,
    workspace: Workspace,
) -> Iterator[Row]:
    """Yield (name, facts, scores by task) of the members' ensemble, and of the best member for each task.

    Raises:
        RecipeError: for fewer than two members.
        CheckpointError: for members that read other tokens or give embeddings of other sizes.
    """
    if len(members) < 2:
        raise RecipeError("'headroom' names one model; an ensemble and a choice take at least two")
    content = "\0".join(model.fingerprint for model in members.values())
    fingerprint = hashlib.sha256(content.encode()).hexdigest()
    with ExitStack() as opened:
        folders = [opened.enter_context(workspace.whole_model(model)) for model in members.values()]
        first = Model(ENSEMBLE, folders[0], f"{ENSEMBLE}-{fingerprint}")
        plans = [_plan(evaluator, folders, workspace) for evaluator in evaluators]
        found = score_model(first, plans, workspace, name=ENSEMBLE)
    # Neither row is a model in a folder, whose size and cost could be given.
    nowhere = workspace.work / "no model"
    named = {task.name: task for task in tasks}
    ensemble = {name: dataclasses.replace(one, task=named[name]) for name, one in found.items()}
    best = {task.name: _best([scores[name][task.name] for name in members]) for task in tasks}
    for wanted, row in zip(HEADROOM, (ensemble, best), strict=True):
        name = free_name([wanted, f"{wanted} of {len(members)}"], scores)
        model = Model(name, nowhere, f"{wanted}-{fingerprint}")
        yield name, (Scored(name, ModelRef(""), headroom=True), model), row


def _plan(
    evaluator: Evaluator, folders: Sequence[Path], workspace: Workspace
) -> tuple[Evaluator, Sequence[TaskInfo]]:
    """Return an evaluator that opens the ensemble, with its tasks."""
    backbone = getattr(evaluator, "backbone", None)
    assert isinstance(backbone, Backbone)  # `headroom_problems` refuses others
    changes = {"backbone": Ensemble(of=backbone, members=tuple(folders))}
    together = dataclasses.replace(evaluator, **changes)
    return together, together.plan(workspace)


def _best(scores: Sequence[TaskScore]) -> TaskScore:
    choose = min if scores[0].task.less_is_better else max
    return choose(scores, key=lambda one: one.score)
