"""Weighted sums of models: the mean, a factor on one model, and changes added to the base."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Block, MergeStrategy, PerTensor, Stats, WeightedSum, WeightRole


@dataclass(frozen=True, kw_only=True)
class Linear(MergeStrategy):
    """Average the models by their weights (model soups: Wortsman et al., 2022, arXiv:2203.05482).

    W = Σ αᵢ Wᵢ / Σ αᵢ. With `normalize: false` the weighted sum is not divided.

    Example:
        models: [{model: ./a, weight: 0.7}, {model: ./b, weight: 0.3}]
        strategy: linear
    """

    normalize: bool = True

    base_policy = "forbidden"
    needs_torch = False

    @property
    def weight_role(self) -> WeightRole:
        return "share" if self.normalize else "scale"

    def formula(self, block: Block, stats: Stats) -> WeightedSum:
        weights = block.weights
        return WeightedSum(weights / weights.sum() if self.normalize else weights)


@dataclass(frozen=True, kw_only=True)
class Passthrough(MergeStrategy):
    """Take the weights of the only model, multiplied by `scale`.

    Example:
        models: ./a
        strategy: {passthrough: {scale: 0.5}}
    """

    scale: PerTensor = PerTensor(1.0)

    arity = range(1, 2)
    base_policy = "forbidden"
    weight_role = "unused"
    needs_torch = False

    def formula(self, block: Block, stats: Stats) -> WeightedSum:
        return WeightedSum([block.options.scale])


@dataclass(frozen=True, kw_only=True)
class TaskArithmetic(MergeStrategy):
    """Add the models' weighted changes to the base (Ilharco et al., 2022, arXiv:2212.04089).

    W = W₀ + scale · Σ αᵢ (Wᵢ - W₀); with `normalize` the sum is divided by Σ αᵢ. Without it, weights are not
    shares: three models of weight 1 move the base by the sum of their changes.

    Example:
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
