"""Plugin of `served`: losses on the signs of embeddings, beside the loss on the embeddings themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from emberge import Count, Embeddings, Loss, NonNegative, Share, hookimpl
from emberge.contracts import OuterLoss
from torch import Tensor

# Slope of the smoothed sign at the end of a training, where it begins at 1.
_STEEPEST = 10.0
_STAGES = 3


@dataclass(frozen=True, kw_only=True)
class Signs(OuterLoss):
    """Losses on embeddings as they are, and on the signs of their first numbers or on noisy ones.

    `straight_through` compares signs and hands gradients on as if they were numbers (Bengio et al., 2013,
    arXiv:1308.3432). `smooth` compares tanh(slope · √m · x) of the first m numbers x, with a slope that rises
    from 1 to 10 (HashNet: Cao et al., 2017, arXiv:1702.00758). `noise` adds normal noise to the numbers; its
    standard deviation rises in three stages, to that of a number of a unit vector.
    """

    loss: tuple[Loss, ...]
    dims: tuple[Count, ...]
    by: Literal["straight_through", "smooth", "noise"]
    signs: NonNegative = 1.0
    warm_up: Share = 0.3
    cross_rank: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "cross_rank", self.loss[0].cross_rank)

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        total: Tensor = self.inner(embeddings, parameters)
        grown = 1.0 if self.warm_up == 0 else min(1.0, embeddings.progress / self.warm_up)
        for size in self.dims:
            cut = dataclasses.replace(
                embeddings,
                anchor=self._take_signs(embeddings.anchor[..., :size], embeddings.progress),
                positive=self._take_signs(embeddings.positive[..., :size], embeddings.progress),
                negative=self._take_signs(embeddings.negative[..., :size], embeddings.progress),
            )
            total = total + self.signs * grown * self.inner(cut, parameters)
        return total

    def _take_signs(self, numbers: Tensor, progress: float) -> Tensor:
        scaled: Tensor = numbers * numbers.shape[-1] ** 0.5
        if self.by == "smooth":
            return torch.tanh((1 + (_STEEPEST - 1) * progress) * scaled)
        if self.by == "noise":
            stage = min(_STAGES, 1 + int(_STAGES * progress))
            return scaled + stage / _STAGES * torch.randn_like(scaled)
        return scaled + (torch.where(scaled > 0, 1.0, -1.0) - scaled).detach()


@hookimpl
def register_losses() -> Mapping[str, type[Loss]]:
    """Return the loss by its name in a recipe."""
    return {"signs": Signs}
