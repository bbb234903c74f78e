"""The `training_loss` evaluator: the mean loss at the end of a training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from emberge import (
    Artifact,
    CheckpointError,
    Evaluator,
    Model,
    Preflight,
    TaskInfo,
    TaskScore,
    Workspace,
)

from emberge_evaluate.held_out_loss import LOSS

# Key in a training's artifact of the mean loss over its last tenth of steps.
_LAST = "last_loss"
_TASK = TaskInfo("training_loss", "training", LOSS, split="dev")


@dataclass(frozen=True, kw_only=True)
class TrainingLoss(Evaluator):
    """Mean training loss over the last tenth of a training's steps, as its step recorded it.

    It compares short trainings with the same data, batches and losses and at most one pass over the data,
    such as those of a search for a learning rate (BidirLM chooses among ten log-spaced rates like this,
    arXiv:2604.02045). Nothing is computed: the loss is read from the result of the step `train`.

    Example:
        rate:
          select:
            models: [./run-1, ./run-2, ./run-3]
            evaluators: training_loss
            metric: loss
            top: 1
            within: null
    """

    def check_model(self, checkpoint: Path, context: Preflight) -> Iterable[str]:
        from emberge.results import read_artifact

        artifact = read_artifact(checkpoint)
        if artifact is None or _LAST not in artifact.details:
            yield _describe_unrecorded(str(checkpoint))

    def check_together(self, checkpoints: Sequence[Path]) -> Iterable[str]:
        from emberge.results import read_artifact

        artifacts = [
            artifact
            for checkpoint in checkpoints
            if (artifact := read_artifact(checkpoint)) is not None
        ]
        if any(
            _read_course(checkpoint) != _read_course(artifacts[0]) for checkpoint in artifacts[1:]
        ):
            yield (
                "trainings differ in data, steps or seed, so that their losses are over other batches and "
                "do not compare"
            )

    def preview(self, context: Preflight) -> Sequence[TaskInfo]:
        return [_TASK]

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        return [_TASK]

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        details = model.details
        if _LAST not in details:
            raise CheckpointError(_describe_unrecorded(model.name))
        for task in tasks:
            yield TaskScore(task, float(details[_LAST]))


def _read_course(artifact: Artifact) -> list[object]:
    return [artifact.details.get(key) for key in ("datasets", "steps", "seed")]


def _describe_unrecorded(model: str) -> str:
    return f"{model}: it has no record of its training losses; name the result of a step train"
