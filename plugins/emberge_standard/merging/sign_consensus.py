"""Electing a sign for each number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import Block, MergeStrategy, PerTensor, Stats

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SignConsensus(MergeStrategy):
    """Elect a sign for each number and average the changes that have it (TIES, arXiv:2306.01708).

    The sign is that of Σ αᵢ τᵢ, plus for zero; a model takes part where αᵢ τᵢ has it. With `normalize` the
    sum of those is divided by their Σ αᵢ; `scale` multiplies the result (Yadav et al., 2023). Trim before
    it: the chain of both is `ties`.
    """

    normalize: bool = True
    """Divide by the weights of those that agree."""
    scale: PerTensor = PerTensor(1.0)
    """Factor on the merged change."""
    elect: Literal["weighted", "unweighted"] = "weighted"
    """Whether weights count in the election too, or only in the average."""
    consensus_mean: Literal["weighted", "count"] = "weighted"
    """Whether those that agree are averaged by weight, as in mergekit, or plainly, as in the paper."""

    base_policy = "required"
    weight_role = "scale"  # the sum of those that agree divides, never the sum of all

    def merge(self, block: Block, stats: Stats) -> Tensor:
        assert block.base is not None
        weights = block.weights.tolist()
        deltas = block.deltas
        # Twice the indicator of a non-negative sum, less one: the elected sign, +1 for zero.
        votes = weights if self.elect == "weighted" else [1.0] * len(weights)
        elected = block.combine(votes, deltas).ge_(0).mul_(2).sub_(1)
        if self.consensus_mean == "count":
            weights = [float((weight > 0) - (weight < 0)) for weight in weights]
        total, divisor = elected.new_zeros(elected.shape), elected.new_zeros(elected.shape)
        for weight, delta in zip(weights, deltas, strict=True):
            agreeing = (delta * elected).mul_(weight).clamp_(min=0)
            total.add_(agreeing)
            if self.normalize:
                divisor.add_(agreeing.sign_(), alpha=weight)
        if self.normalize:
            total.div_(_without_zeros(divisor, weights))
        return total.mul_(elected).mul_(block.options.scale).add_(block.base)


def _without_zeros(divisor: Tensor, weights: list[float]) -> Tensor:
    """Sums of some of the weights, something else for a sum of none, where nothing is to be divided."""
    if min(weights) < 0:
        return divisor.add_(divisor == 0)
    # The same as far as it matters and ten times faster: no sum of some lies below the least weight.
    return divisor.clamp_(min=min((w for w in weights if w > 0), default=1.0) / 2)
