"""Electing a sign for each number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: {sign_consensus: {elect: unweighted}}
    """

    normalize: bool = True
    """Divide by the weights of those that agree."""
    scale: PerTensor = PerTensor(1.0)
    """Factor on the merged change."""
    elect: Literal["weighted", "unweighted"] = "weighted"
    """Weights count in the election too, or only in the average."""
    consensus_mean: Literal["weighted", "count"] = "weighted"
    """The average of those that agree: by weight, as in mergekit, or plain, as in the paper."""

    revision = 2
    base_policy = "required"
    weight_role = "scale"  # the sum of those that agree divides, never the sum of all

    def weight_warnings(self, weights: Mapping[str, float]) -> Iterator[str]:
        negative = [name for name, weight in weights.items() if weight < 0]
        if negative:
            yield (
                f"{', '.join(negative)}: a negative weight turns a model's signs around in the election, and "
                "sums of weights may come near zero; give positive weights unless you mean that"
            )

    def merge(self, block: Block, stats: Stats) -> Tensor:
        import torch
        from emberge import pooled_like

        assert block.base is not None
        weights = block.weights.tolist()
        deltas = block.deltas
        # A half with the elected sign, that of zero being plus: an indicator, less a half.
        votes = weights if self.elect == "weighted" else [1.0] * len(weights)
        elected = block.combine(votes, deltas).ge_(0).sub_(0.5)
        if self.consensus_mean == "count":
            weights = [float((weight > 0) - (weight < 0)) for weight in weights]
        total, divisor, agrees = (
            pooled_like(elected).zero_(),
            pooled_like(elected).zero_(),
            pooled_like(elected),
        )
        for weight, delta in zip(weights, deltas, strict=True):
            torch.mul(delta, elected, out=agrees)
            # Ones and zeros of the numbers' own type multiply several times faster than truths.
            agrees.gt_(0) if weight > 0 else agrees.lt_(0)
            total.addcmul_(agrees, delta, value=weight)
            if self.normalize:
                divisor.add_(agrees, alpha=weight)
        if self.normalize:
            total.div_(_without_zeros(divisor, weights))
        return torch.add(block.base, total, alpha=block.options.scale, out=total)


def _without_zeros(divisor: Tensor, weights: list[float]) -> Tensor:
    """Return sums of some of the weights, with a nonzero number for a sum of none, which divides zero."""
    if min(weights) < 0:
        return divisor.add_(divisor == 0)
    # The same as far as it matters and ten times faster: no sum of some is below the least weight.
    return divisor.clamp_(min=min((w for w in weights if w > 0), default=1.0) / 2)
