"""Swap in what is near the base already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import BasePolicy, Block, MergeStrategy, PerTensor, Stats, WeightRole

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class NearSwap(MergeStrategy):
    """Go to the model where it lies near the base, less so where it lies far (alchemonaut, 2024).

    W = w · W_1 + (1 - w) · W_0 with w = clamp(t / max(|W_1 - W_0|, 1e-6), 0, 1), element by element.
    """

    t: PerTensor
    """Distance up to which an element is taken over wholly; absolute, in the weights' own units."""

    @property
    def arity(self) -> range:
        return range(1, 2)

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    @property
    def weight_role(self) -> WeightRole:
        return "unused"

    def merge(self, block: Block, stats: Stats) -> Tensor:
        delta = block.deltas[0]
        share = (block.options.t / delta.abs().clamp(min=1e-6)).clamp(0, 1)
        merged: Tensor = block.tensors[0] - delta * (1 - share)
        return merged
