"""Trainee: the interface of a trained object to the trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from emberge.encoding import PassResult
from emberge.ranks import RankGroup
from emberge.training.batch_plan import PlannedBatch
from emberge.training.fit_options import FitOptions


class Trainee:
    """Interface of a trained object to the trainer: parameters, batch of each step, pass over a batch.

    The trainer handles schedule, optimizer, clipping, early stopping, states, resuming and metrics. Two
    examples of trainees: a session (an encoder with losses over datasets), and an encoder with a new head for
    a task.
    """

    ranks: RankGroup
    """Processes that train the trainee together, each with its share of a batch."""
    warms_up_from_zero: bool = False
    """True if the first step's learning rate is 0, as in transformers; otherwise it is above 0."""

    fixes_threads: bool = False
    """True if a resumed training computes with as many threads as before."""

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Tensors that the optimizer updates, the same objects at every call, by their names in a state."""
        raise NotImplementedError

    @property
    def splits_weights(self) -> bool:
        """True if each rank has only a part of the weights (FSDP2)."""
        return False

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        raise NotImplementedError

    def plan_batch(self, step: int) -> PlannedBatch:
        """Return the batch of a step, from 0; it does not depend on the parameters."""
        raise NotImplementedError

    def backward(self, batch: PlannedBatch) -> PassResult:
        """Add this rank's share of a batch's gradients to the parameters' gradients.

        The result has the loss of the whole batch, and this rank's counts of tokens.
        """
        raise NotImplementedError

    @property
    def tasks(self) -> Mapping[str, str]:
        """Kind of task by dataset, for metrics."""
        return {}

    def decays(self, parameter: Tensor) -> bool:
        """Return whether weight decay applies to this parameter; by default, not to biases and norms."""
        return parameter.ndim > 1

    def score(self, step: int) -> float:
        """Return the score of the current parameters for early stopping; larger is better."""
        raise NotImplementedError

    def describe_identity(self) -> Mapping[str, Any]:
        """Return the facts that must be equal to continue a state, by name, as JSON values."""
        return {}

    def list_steps_to_keep(self, options: FitOptions) -> tuple[int, ...]:
        """Return the steps whose models are kept next to the states."""
        return ()

    def gather_weights(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which every rank has the weights that ranks share, to save them."""
        return contextlib.nullcontext()

    def save(self, folder: Path) -> None:
        """Write the trained object into a folder."""
        raise NotImplementedError
