"""Elect a sign, then take the largest magnitude that has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, MergeStrategy, PerTensor, Stats

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Emr(MergeStrategy):
    """Give each element the sign of the changes' sum and the largest magnitude with that sign (EMR).

    The changes are αᵢ τᵢ, and a sum of zero elects plus (Huang et al., 2024, arXiv:2405.17461). The masks
    and rescalers that EMR adds for each task are left out, as they need to know the task at inference.

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: {emr: {scale: 0.8}}
    """

    scale: PerTensor = PerTensor(1.0)
    """Factor on the unified change."""

    base_policy = "required"
    weight_role = "scale"

    def merge(self, block: Block, stats: Stats) -> Tensor:
        import torch

        deltas, weights = block.deltas, block.weights.tolist()
        # Twice the indicator of a non-negative sum, less one: the elected sign, +1 for zero.
        elected = block.combine(weights, deltas).ge_(0).mul_(2).sub_(1)
        largest_magnitudes = torch.zeros_like(elected)
        for weight, delta in zip(weights, deltas, strict=True):
            torch.maximum(
                largest_magnitudes, (delta * elected).mul_(weight), out=largest_magnitudes
            )
        # Which of two zeros a maximum returns depends on its place in a block; -0 + 0 is 0.
        largest_magnitudes.add_(0.0)
        return block.add_delta(largest_magnitudes.mul_(elected).mul_(block.options.scale))
