"""The weighted mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, MergeStrategy, Stats, WeightRole

if TYPE_CHECKING:
    from torch import Tensor


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

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return block.combine(self.factors(block, stats))

    def factors(self, block: Block, stats: Stats) -> list[float]:
        weights = block.weights / block.weights.sum() if self.normalize else block.weights
        factors: list[float] = weights.tolist()
        return factors
