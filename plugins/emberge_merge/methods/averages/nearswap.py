"""Swap in what is near the base already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, MergeStrategy, PerTensor, Stats

if TYPE_CHECKING:
    from torch import Tensor

_LEAST = 1e-6


@dataclass(frozen=True, kw_only=True)
class NearSwap(MergeStrategy):
    """Go to the model where it is near the base, less so where it is far (alchemonaut, 2024).

    W = w · W_1 + (1 - w) · W_0 with w = clamp(t / max(|W_1 - W_0|, 1e-6), 0, 1), element by element.

    Example:
        merged:
          merge:
            models: ./tuned
            base: ./base
            strategy: {nearswap: {t: 0.001}}
    """

    t: PerTensor
    """Distance up to which an element is taken over wholly; absolute, in the weights' own units."""

    arity = range(1, 2)
    base_policy = "required"
    weight_role = "unused"

    def merge(self, block: Block, stats: Stats) -> Tensor:
        delta = block.deltas[0]
        share: Tensor = block.options.t / delta.abs().clamp_(min=_LEAST)
        # From the model back by what is left of its change, so that what is taken over is so to the bit.
        back = share.clamp_(0, 1).neg_().add_(1).mul_(delta)
        return block.tensors[0] - back
