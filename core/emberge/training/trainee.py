"""Trainee: what a training trains, as the trainer sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from emberge.encoding import PassResult
from emberge.ranks import Ranks
from emberge.training.fit_options import FitOptions
from emberge.training.plan.batch_plan import PlannedBatch


class Trainee:
    """Parameters, the batch of each step, and the pass over a batch.

    Schedule, optimizer, clipping, early stopping, states, resume and metrics are the trainer's. A session is
    a trainee: an encoder with losses over datasets. So are an encoder with a fresh head on a task, and the
    coefficients by which a merge sums weights.
    """

    ranks: Ranks
    """Processes that train it together, each with its share of a batch."""
    warms_up_from_zero: bool = False
    """Flag that the first step's learning rate is 0, as in transformers; that of others is above it."""

    fixes_threads: bool = False
    """Flag that a training which goes on from a state computes with as many threads as before."""

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Tensors that the optimizer steps, the same ones every time, by their names in a state."""
        raise NotImplementedError

    @property
    def shares_weights(self) -> bool:
        """Flag that each rank has a part of the weights alone (FSDP2)."""
        return False

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        raise NotImplementedError

    def batch(self, step: int) -> PlannedBatch:
        """Return the batch of a step, from 0; it does not depend on the parameters."""
        raise NotImplementedError

    def backward(self, batch: PlannedBatch) -> PassResult:
        """Add this rank's share of a batch's gradients to those of the parameters, and return the loss."""
        raise NotImplementedError

    @property
    def tasks(self) -> Mapping[str, str]:
        """Kind of task by dataset, for metrics."""
        return {}

    def segment(self, step: int) -> tuple[int, int]:
        """Return the first step and the end of the stretch that a step is in."""
        return 0, self.steps

    def decays(self, parameter: Tensor) -> bool:
        """Return whether weight decay is for this parameter: by default not for biases and norms."""
        return parameter.ndim > 1

    def project(self) -> None:
        """Move parameters to the nearest allowed values; called after each step."""

    def score(self, step: int) -> float:
        """Return the score of the parameters as they are, the larger the better, for early stopping."""
        raise NotImplementedError

    def identity(self) -> Mapping[str, Any]:
        """Return what must be the same for a state to be continued: part by part, as JSON values."""
        return {}

    def steps_to_keep(self, options: FitOptions) -> tuple[int, ...]:
        """Return the steps whose models are kept next to the states."""
        return ()

    def whole_weights(self) -> contextlib.AbstractContextManager[None]:
        """Gather weights that ranks share, for a block that saves them."""
        return contextlib.nullcontext()

    def save(self, folder: Path) -> None:
        """Write what was trained into a folder."""
        raise NotImplementedError
