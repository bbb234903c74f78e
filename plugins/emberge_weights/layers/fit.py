"""Fit of coefficients by member and block, by gradients from one weighting for all blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emberge import CheckpointError
from emberge.encoding import PassResult
from emberge.ranks import ALONE
from emberge.training import FitOptions, PlannedBatch, PlannedPart, Trainee, train
from numpy.typing import NDArray
from torch import Tensor

from emberge_weights.layers.labelled_texts import LabelledTexts
from emberge_weights.layers.member_tensors import Embed, MixedForward

Array = NDArray[np.float64]
Places = NDArray[np.int64]
RATE = 0.05
# Weight of the squared distance from where the fit has started.
PULL = 0.3


def fit_coefficients(
    start: Array,
    blocks: int,
    forward: MixedForward,
    sets: Sequence[LabelledTexts],
    units: Sequence[Places],
    *,
    seed: int,
    rounds: int,
    work: Path,
    progress: Callable[[int], None] | None = None,
) -> Array:
    """Return coefficients [blocks, members]; each block's coefficients are weights that sum to 1.

    The fit begins with `start` [members] in every block, and follows gradients of the losses on some units of
    each set. The folder `work` keeps the states from which a killed fit continues.

    Raises:
        CheckpointError: if a loss is not finite; the message has the step and the set.
    """
    coefficients = _Coefficients(start, blocks, forward, sets, units, seed, rounds)
    train(
        coefficients,
        FitOptions(
            learning_rate=RATE,
            warmup_ratio=0,
            schedule="linear",
            weight_decay=0,
            max_grad_norm=None,
        ),
        folder=None,
        work=work,
        progress=lambda done, *_: progress(done) if progress is not None else None,
    )
    return coefficients.values.detach().double().numpy()


class _Coefficients(Trainee):
    """Coefficients by block and member, pulled to their start and projected to the simplex each step."""

    ranks = ALONE

    def __init__(
        self,
        start: Array,
        blocks: int,
        forward: MixedForward,
        sets: Sequence[LabelledTexts],
        units: Sequence[Places],
        seed: int,
        rounds: int,
    ) -> None:
        self.origin = torch.tensor(start, dtype=torch.float32).expand(blocks, -1)
        self.values = self.origin.clone().requires_grad_()
        self.forward, self.rounds = forward, rounds
        # Sets of two catalogues may have one name.
        self.sets = {
            f"{number} {fitted_set.name}": fitted_set for number, fitted_set in enumerate(sets)
        }
        rng = np.random.default_rng(seed)
        self._orders = {
            name: fitted_set.batches(set_units, rng)
            for (name, fitted_set), set_units in zip(self.sets.items(), units, strict=True)
        }
        self._batches: list[PlannedBatch] = []
        self._identity = {"start": start.tolist(), "seed": seed, "rounds": rounds}

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        return {"coefficients": self.values}

    @property
    def steps(self) -> int:
        return self.rounds

    @property
    def tasks(self) -> Mapping[str, str]:
        return dict.fromkeys(self.sets, "labelled")

    def identity(self) -> Mapping[str, Any]:
        return {"options": self._identity}

    def batch(self, step: int) -> PlannedBatch:
        # The sets share one generator, so the batches of a step are drawn after those before them.
        while len(self._batches) <= step:
            batch_by_set = {name: next(order, None) for name, order in self._orders.items()}
            parts = [
                PlannedPart(name, units, in_batch=True)
                for name, units in batch_by_set.items()
                if units is not None
            ]
            self._batches.append(PlannedBatch(len(self._batches), 0, 0, tuple(parts)))
        return self._batches[step]

    def backward(self, batch: PlannedBatch) -> PassResult:
        embed = self.forward.at(self.values)
        losses = [
            _require_finite_loss(self.sets[part.dataset], embed, part.rows, batch.step)
            for part in batch.parts
        ]
        pull = PULL * (self.values - self.origin).square().sum()
        total = torch.stack(losses).mean() + pull if losses else pull
        total.backward()  # type: ignore[no-untyped-call]
        assert self.values.grad is not None
        # What all members of a block have in common would move their sum.
        self.values.grad -= self.values.grad.mean(1, keepdim=True)
        return PassResult(total.detach(), tokens=0, padded=0)

    def project(self) -> None:
        with torch.no_grad():
            self.values.copy_(nearest_on_simplex(self.values))


def _require_finite_loss(
    fitted_set: LabelledTexts, embed: Embed, batch: Places, step: int
) -> Tensor:
    loss = fitted_set.loss(embed, batch)
    if not torch.isfinite(loss):
        raise CheckpointError(
            f"the loss of step {step + 1} on set '{fitted_set.name}' is not finite: a member embeds its "
            "texts as no numbers, or its scores are too large; look at the models, or leave the set out"
        )
    return loss


def nearest_on_simplex(rows: Tensor) -> Tensor:
    """Return the nearest weights of each row that are 0 or more and sum to 1 (Duchi et al., 2008)."""
    descending = rows.sort(dim=1, descending=True).values
    excess = (descending.cumsum(1) - 1) / torch.arange(1, rows.shape[1] + 1)
    last_positive = (descending > excess).sum(1, keepdim=True) - 1
    return (rows - excess.gather(1, last_positive)).clamp_min(0)
