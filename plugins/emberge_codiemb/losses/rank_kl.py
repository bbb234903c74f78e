"""Rank KL: a loss that draws the softmax of cosines to the softmax of the scores' ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Positive
from emberge.numerics import lowest_score

from emberge_codiemb.losses.pairs import PairLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RankKL(PairLoss):
    """Divergence of a batch's cosines from the ranks of its scores (CoDiEmb, arXiv:2508.11442).

    The pairs are every anchor with each of its scored positives and negatives. Among n pairs in descending
    order of score, the pair of rank r (counted from 0; equal scores have their mean rank) has the target R =
    (n - 1 - r) / (n - 1). The loss is the Kullback-Leibler divergence of softmax(cos / temperature) from
    softmax(R / temperature). Ranks do not depend on the distribution of a dataset's scores. The loss is
    divided by n, as the authors' code does and its weight of 5 expects, and not the paper's equation 6.
    In a batch with equal scores, the loss draws all cosines towards one value. By default each rank computes
    the loss of its own rows.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: {by_task: {retrieval: infonce, sts: rank_kl}}
            sampler: batch_shuffle
    """

    temperature: Positive = 0.05
    """Divisor of the cosines and of the targets."""

    def of_pairs(self, cosine: Tensor, score: Tensor, scored: Tensor) -> Tensor:

        def log_shares(values: Tensor) -> Tensor:
            scaled = values / self.temperature
            return scaled.masked_fill(~scored, lowest_score(scaled)).log_softmax(0)

        log_predicted, log_targets = log_shares(cosine), log_shares(_rank_targets(score, scored))
        total = (log_targets.exp() * (log_targets - log_predicted)).masked_fill(~scored, 0.0).sum()
        return total / scored.sum().clamp(min=1)


def _rank_targets(score: Tensor, scored: Tensor) -> Tensor:
    """Return evenly spaced targets [m] from 1 (highest score) to 0; equal scores get their mean target."""
    import torch

    negated = (-score).masked_fill(~scored, torch.inf)
    ordered = negated.sort().values
    higher_counts = torch.searchsorted(ordered, negated)
    not_lower = torch.searchsorted(ordered, negated, right=True)
    rank = (higher_counts + not_lower - 1).to(score.dtype) / 2
    lowest_rank = scored.sum() - 1
    return (lowest_rank - rank) / lowest_rank.clamp(min=1)
