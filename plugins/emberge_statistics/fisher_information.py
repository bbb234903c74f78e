"""Diagonal Fisher information of a model: the mean of squared gradients over the batches of a training.

Nothing of the texts is kept but sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from emberge import EmbergeError
from emberge.training import Session
from torch import Tensor

from emberge_statistics.stored_tensors import StoredTensors


def measure_fisher(session: Session, stored: StoredTensors, work: Path) -> Mapping[str, Tensor]:
    """Return the Fisher information of each tensor, float32, with states in `work` to go on from.

    It is the mean over batches of the squared gradient of the batch's loss; a tensor that no embedding
    depends on has the single number 0.

    Raises:
        EmbergeError: when a batch's loss is not finite.
    """
    names = stored.names_of(session.encoder)
    parameters = dict(session.encoder.module.named_parameters())
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for batch in session.batches(sums, work / "states"):
        if not bool(torch.isfinite(session.backward(batch).loss)):
            raise EmbergeError(f"the loss of batch {batch.step} is not finite; is the model sound?")
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                sums[name].addcmul_(parameter.grad, parameter.grad)
        session.encoder.module.zero_grad(set_to_none=True)
    means = {names[n]: total / session.plan.steps for n, total in sums.items()}
    unused = {name: torch.zeros(()) for name in stored.shapes if name not in means}
    return {**means, **unused}
