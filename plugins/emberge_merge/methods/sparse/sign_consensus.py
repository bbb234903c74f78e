"""Electing a sign for each element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import Block, MergeStrategy, PerTensor, Stats

if TYPE_CHECKING:
    import numpy as np
    from emberge.numerics import DeltaProgram, KernelRows
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SignConsensus(MergeStrategy):
    """Elect a sign for each element and average the changes that have it (TIES, arXiv:2306.01708).

    The elected sign is the sign of Σ αᵢ τᵢ, plus for zero. A model takes part if αᵢ τᵢ has that sign. With
    `normalize`, the sum over these models is divided by their Σ αᵢ; `scale` multiplies the result (Yadav et
    al., 2023). Put `trim` before this link: the chain of both is `ties`.

    Example:
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

    def formula(self, block: Block, stats: Stats) -> SignElection:
        weights = block.weights.tolist()
        votes = weights if self.elect == "weighted" else [1.0] * len(weights)
        if self.consensus_mean == "count":
            weights = [float((weight > 0) - (weight < 0)) for weight in weights]
        return SignElection(votes, weights, self.normalize, block.options.scale)


@dataclass(frozen=True, slots=True)
class SignElection:
    """Merged rows base + scale × the weighted mean of the deltas with the sign that `votes` elect.

    If the votes add up to zero, the sign is plus. Without `normalize`, the sum is not divided by the weights
    of the models that agree.
    """

    votes: Sequence[float]
    weights: Sequence[float]
    normalize: bool = True
    scale: float = 1.0

    of_deltas = True

    @property
    def least_divisor(self) -> float | None:
        """A divisor for empty sums, smaller than every sum of some weights; None if there is none.

        Clamping divisors to this minimum is ten times faster than replacing zeros, which is needed with
        negative weights.
        """
        if min(self.weights) < 0:
            return None
        return min((w for w in self.weights if w > 0), default=1.0) / 2

    def by_torch(self, rows: DeltaProgram) -> Tensor:
        import torch
        from emberge.numerics import compute_weighted_sum, take_tensor_like

        deltas = rows.deltas
        # A half with the elected sign: an indicator, less a half.
        elected = compute_weighted_sum(self.votes, deltas).ge_(0).sub_(0.5)
        total, divisor = take_tensor_like(elected).zero_(), take_tensor_like(elected).zero_()
        has_elected_sign = take_tensor_like(elected)
        for weight, delta in zip(self.weights, deltas, strict=True):
            torch.mul(delta, elected, out=has_elected_sign)
            # Ones and zeros of the numbers' own type multiply several times faster than truths.
            has_elected_sign.gt_(0) if weight > 0 else has_elected_sign.lt_(0)
            total.addcmul_(has_elected_sign, delta, value=weight)
            if self.normalize:
                divisor.add_(has_elected_sign, alpha=weight)
        if self.normalize:
            least = self.least_divisor
            total.div_(divisor.add_(divisor == 0) if least is None else divisor.clamp_(min=least))
        return torch.add(rows.require_base(), total, alpha=self.scale, out=total)

    def by_kernels(self, rows: KernelRows) -> Tensor | np.ndarray:
        import numpy as np

        votes, weights = (np.array(one, np.float32) for one in (self.votes, self.weights))
        least = self.least_divisor
        # A divisor below zero asks the kernel to replace zeros.
        limits = -1.0 if least is None else least, self.normalize, self.scale
        return rows.merge("elect", votes, weights, *limits)
