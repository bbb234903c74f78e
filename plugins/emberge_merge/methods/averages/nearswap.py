"""Take a model's elements where they are near the base's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, MergeStrategy, PerTensor, Stats

if TYPE_CHECKING:
    from torch import Tensor

_LEAST = 1e-6


@dataclass(frozen=True, kw_only=True)
class NearSwap(MergeStrategy):
    """Take the model's elements near the base's, and mostly the base's elsewhere (alchemonaut, 2024).

    W = w · W_1 + (1 - w) · W_0 with w = clamp(t / max(|W_1 - W_0|, 1e-6), 0, 1), element by element.

    Example:
        merged:
          merge:
            models: ./tuned
            base: ./base
            strategy: {nearswap: {t: 0.001}}
    """

    t: PerTensor
    """Distance from the base up to which the model's element is taken unchanged, in units of the weights."""

    arity = range(1, 2)
    base_policy = "required"
    weight_role = "unused"

    def merge(self, block: Block, stats: Stats) -> Tensor:
        delta = block.deltas[0]
        share: Tensor = block.options.t / delta.abs().clamp_(min=_LEAST)
        # From the model back by what is left of its change, so that what is taken over is so to the bit.
        undone_change = share.clamp_(0, 1).neg_().add_(1).mul_(delta)
        return block.tensors[0] - undone_change
