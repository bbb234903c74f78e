"""Elect a sign, then take the largest magnitude that has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import BasePolicy, Block, MergeStrategy, PerTensor, Stats, WeightRole

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Emr(MergeStrategy):
    """The unified delta of EMR: the sign of the sum, and the largest magnitude among models that have it.

    Huang et al., 2024, arXiv:2405.17461, without the per-task masks and rescalers, which need to know
    the task at inference.
    """

    scale: PerTensor = PerTensor(1.0)
    """Factor on the unified delta."""

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    @property
    def weight_role(self) -> WeightRole:
        return "scale"

    def merge(self, block: Block, stats: Stats) -> Tensor:
        deltas = block.deltas
        weights = block.weights.to(deltas.dtype).view(-1, *[1] * (deltas.dim() - 1))
        deltas = deltas * weights
        sign = (deltas.sum(0) >= 0).to(deltas.dtype) * 2 - 1
        return block.add_delta(sign * (deltas * sign).clamp(min=0).amax(0) * block.options.scale)
