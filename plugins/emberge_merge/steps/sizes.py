"""`weights: size`: a model weighs as much as the number of examples that it was trained on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from emberge import CheckpointError, PerTensor, Preflight, Problem
from emberge.engine import read_artifact

if TYPE_CHECKING:
    from emberge import Model

    from emberge_merge.steps.merge import ModelEntry

__all__ = ["Weights", "size_problems", "weight_of"]

Weights = Literal["equal", "size"]


def size_problems(entry: ModelEntry, folder: Path | None, context: Preflight) -> Iterator[Problem]:
    """What keeps a model, or adapter, that lies in `folder` from being weighed by its size."""
    if folder is None:
        return
    artifact = read_artifact(folder)
    if artifact is None or artifact.size is None:
        yield context.problem(_no_size(entry.model.text), "weights")


def weight_of(entry: ModelEntry, model: Model, weights: Weights) -> PerTensor:
    """A model's weight: its own, times the examples that it was trained on if sizes count.

    Raises:
        CheckpointError: for a model that does not say how many those were.
    """
    if weights == "equal":
        return entry.weight
    size = model.artifact.size if model.artifact is not None else None
    if size is None:
        raise CheckpointError(_no_size(entry.model.text))
    return entry.weight.times(size)


def _no_size(text: str) -> str:
    return (
        f"weights: size needs the number of examples that '{text}' was trained on, which it does not "
        "say; give each model a weight instead"
    )
