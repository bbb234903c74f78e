"""Electing a sign for each element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from emberge import Block, MergeStrategy, PerTensor, SignElection, Stats


@dataclass(frozen=True, kw_only=True)
class SignConsensus(MergeStrategy):
    """Elect a sign for each element and average the changes that have it (TIES, arXiv:2306.01708).

    The elected sign is the sign of Σ αᵢ τᵢ, plus for zero. A model takes part if αᵢ τᵢ has that sign. With
    `normalize`, the sum over these models is divided by their Σ αᵢ; `scale` multiplies the result (Yadav et
    al., 2023). Put `trim` before this link: the chain of both is `ties`.

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: {sign_consensus: {elect: unweighted}}
    """

    normalize: bool = True
    """Divide by the sum of the weights of the models that agree with the elected sign."""
    scale: PerTensor = PerTensor(1.0)
    """Factor on the merged change."""
    elect: Literal["weighted", "unweighted"] = "weighted"
    """Factors of the changes in the election: the models' weights, or 1 for every model."""
    consensus_mean: Literal["weighted", "count"] = "weighted"
    """Average of the changes that agree: weighted, as in mergekit, or plain, as in the paper."""

    revision = 2
    base_policy = "required"
    needs_torch = False
    weight_role = "scale"  # the sum of those that agree divides, never the sum of all

    def weight_warnings(self, weights: Mapping[str, float]) -> Iterator[str]:
        negative = [name for name, weight in weights.items() if weight < 0]
        if negative:
            yield (
                f"{', '.join(negative)}: a negative weight turns a model's signs around in the election, and "
                "sums of weights may come near zero; give positive weights unless you mean that"
            )

    def formula(self, block: Block, stats: Stats) -> SignElection:
        weights = block.weights.tolist()
        votes = weights if self.elect == "weighted" else [1.0] * len(weights)
        if self.consensus_mean == "count":
            weights = [float((weight > 0) - (weight < 0)) for weight in weights]
        return SignElection(votes, weights, self.normalize, block.options.scale)
