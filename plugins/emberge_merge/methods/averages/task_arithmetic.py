"""Adding what fine-tuning changed."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Block, MergeStrategy, PerTensor, Stats, WeightedSum, WeightRole


@dataclass(frozen=True, kw_only=True)
class TaskArithmetic(MergeStrategy):
    """Add the models' weighted changes to the base (Ilharco et al., 2022, arXiv:2212.04089).

    W = W₀ + scale · Σ αᵢ (Wᵢ - W₀); with `normalize` the sum is divided by Σ αᵢ. Without it, weights are not
    shares: three models of weight 1 move the base by the sum of their changes.

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: {task_arithmetic: {scale: 0.8}}
    """

    scale: PerTensor = PerTensor(1.0)
    """Factor on the summed delta."""
    normalize: bool = False
    """Divide by the sum of the weights."""

    base_policy = "required"
    needs_torch = False

    @property
    def weight_role(self) -> WeightRole:
        return "share" if self.normalize else "scale"

    def formula(self, block: Block, stats: Stats) -> WeightedSum:
        weights = block.weights * block.options.scale
        if self.normalize:
            weights = weights / block.weights.sum()
        return WeightedSum(weights, of_deltas=True)
