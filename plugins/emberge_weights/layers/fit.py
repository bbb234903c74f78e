"""Fit of coefficients by member and block, by gradients from one weighting for all blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from emberge import CheckpointError
from numpy.typing import NDArray
from torch import Tensor

from emberge_weights.layers.labelled_texts import LabelledTexts
from emberge_weights.layers.mixed_forward import Embed, MixedForward

__all__ = ["fit", "on_simplex"]

Array = NDArray[np.float64]
Places = NDArray[np.int64]
RATE = 0.05
# Weight of the squared distance from where the fit has started.
PULL = 0.3


def fit(
    start: Array,
    blocks: int,
    forward: MixedForward,
    sets: Sequence[LabelledTexts],
    units: Sequence[Places],
    *,
    seed: int,
    rounds: int,
    progress: Callable[[int], None] | None = None,
) -> Array:
    """Return coefficients [blocks, members], of which those of a block are weights that sum to 1.

    They begin with `start` [members] in every block, and follow the losses on some units of each set.

    Raises:
        CheckpointError: for a loss that is not finite, with the step and the set.
    """
    rng = np.random.default_rng(seed)
    origin = torch.tensor(start, dtype=torch.float32).expand(blocks, -1)
    found = origin.clone().requires_grad_()
    optimizer = torch.optim.Adam([found], lr=RATE)
    batches = [one.batches(some, rng) for one, some in zip(sets, units, strict=True)]
    for step in range(rounds):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / rounds)
        optimizer.zero_grad()
        embed = forward.at(found)
        drawn = [(one, next(some, None)) for one, some in zip(sets, batches, strict=True)]
        losses = [
            _finite_loss(one, embed, batch, step) for one, batch in drawn if batch is not None
        ]
        pull = PULL * (found - origin).square().sum()
        total = torch.stack(losses).mean() + pull if losses else pull
        total.backward()  # type: ignore[no-untyped-call]
        assert found.grad is not None
        # What all members of a block have in common would move their sum.
        found.grad -= found.grad.mean(1, keepdim=True)
        optimizer.step()
        with torch.no_grad():
            found.copy_(on_simplex(found))
        if progress is not None:
            progress(step + 1)
    return found.detach().double().numpy()


def _finite_loss(one: LabelledTexts, embed: Embed, batch: Places, step: int) -> Tensor:
    loss = one.loss(embed, batch)
    if not torch.isfinite(loss):
        raise CheckpointError(
            f"the loss of step {step + 1} on set '{one.name}' is not finite: a member embeds its texts as no "
            "numbers, or its scores are too large; look at the models, or leave the set out"
        )
    return loss


def on_simplex(rows: Tensor) -> Tensor:
    """Return the nearest weights of each row that are 0 or more and sum to 1 (Duchi et al., 2008)."""
    falling = rows.sort(dim=1, descending=True).values
    excess = (falling.cumsum(1) - 1) / torch.arange(1, rows.shape[1] + 1)
    last = (falling > excess).sum(1, keepdim=True) - 1
    return (rows - excess.gather(1, last)).clamp_min(0)
