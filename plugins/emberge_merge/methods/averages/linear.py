"""The weighted mean."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Block, MergeStrategy, Stats, WeightedSum, WeightRole


@dataclass(frozen=True, kw_only=True)
class Linear(MergeStrategy):
    """Average the models by their weights (model soups: Wortsman et al., 2022, arXiv:2203.05482).

    W = Σ αᵢ Wᵢ / Σ αᵢ. With `normalize: false` the weighted sum is not divided.

    Example:
        merged:
          merge:
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
