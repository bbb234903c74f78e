"""One training as an object: all that decides its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emberge.contracts import (
    AnyLoss,
    Backbone,
    Dataset,
    Model,
    ModelRef,
    PerDataset,
    Rehearsal,
    Sampler,
)
from emberge.training.fit_options import FitOptions


@dataclass(frozen=True)
class EarlyStopping:
    """Scores during a training, and what follows from them.

    After every `every` steps and after the last one, `score(folder, step)` returns one number, the larger
    the better, for the model (or the adapter) in a folder; without it the trainee scores itself as it is in
    memory. After `patience` scores in turn that are no better than the best before them the training ends;
    None lets it run to the end. With `best` the earliest of the best models is the result, else the last
    one. `identity` names all that a score depends on beside the model: a state is continued only under the
    same one.
    """

    every: int
    score: Callable[[Path, int], float] | None = field(repr=False)
    identity: str
    patience: int | None = None
    best: bool = True


@dataclass(frozen=True, kw_only=True)
class FitJob:
    """All that decides the result of a training: the same job gives the same bytes on equal machines."""

    backbone: Backbone
    """Recipe for the encoder of the checkpoint."""
    checkpoint: Path
    """The model folder that the training starts from."""
    datasets: Sequence[Dataset]
    sampler: Sequence[Sampler]
    """Samplers that select rows; the last one groups them into batches."""
    losses: PerDataset[tuple[AnyLoss, ...]]
    """The weighted sum of losses of each dataset; those of the task `text` are over tokens."""
    options: FitOptions = field(default_factory=FitOptions)
    seed: int = 0
    guides: Callable[[ModelRef], Model] | None = None
    """A function from a guide's reference to its model, where losses name guides."""
    early_stopping: EarlyStopping | None = None
    rehearsal: Rehearsal | None = None
    """Limits of rows and steps for a rehearsal, None for the whole training."""
