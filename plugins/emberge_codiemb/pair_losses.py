"""Losses of scored pairs: Pearson, PRO and rank KL, from cosines and gold scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import ALL_KINDS, Embeddings, Loss, Positive
from emberge.numerics import apply_blockwise, find_lowest_score

if TYPE_CHECKING:
    from torch import Tensor

# With a smaller spread, or with one that rounding makes of equal numbers, numbers count as equal.
SMALLEST_SPREAD = 1e-8
# Scores that differ by no more than this count as equal.
TIE_TOLERANCE = 1e-8


@dataclass(frozen=True, kw_only=True)
class PairLoss(Loss):
    """Loss of a batch's scored pairs, which learns from how their scores differ; local to a rank by default.

    A subclass implements `compute_from_pairs`. The pairs are every anchor with each of its scored positives
    and negatives.
    """

    cross_rank: bool = False
    needs = frozenset({"positive_score"})
    kinds = ALL_KINDS

    def __call__(self, embeddings: Embeddings) -> Tensor:
        e = embeddings
        if e.positive_score is None and e.negative_score is None:
            raise ValueError(f"{type(self).__name__} needs scores")
        score = e.scores.flatten()
        scored = e.valid.flatten() & ~score.isnan()
        closeness = e.closeness.flatten().masked_fill(~scored, 0.0)
        return self.compute_from_pairs(closeness, score.masked_fill(~scored, 0.0), scored)

    def compute_from_pairs(self, closeness: Tensor, score: Tensor, scored: Tensor) -> Tensor:
        """Return the loss of pairs [m]; `scored` marks pairs with a score, and other values are 0."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Pearson(PairLoss):
    """Correlation of a batch's cosines with their scores, subtracted from one (CoDiEmb, arXiv:2508.11442).

    The pairs are every anchor with each of its scored positives and negatives. A batch whose scores or
    cosines are all equal has no correlation: its loss is 0, with a gradient of zero. By default each rank
    computes the loss of its own rows.

    Example:
        data: ./datasets.yaml
        loss: {by_task: {retrieval: infonce, sts: pearson}}
    """

    def compute_from_pairs(self, closeness: Tensor, score: Tensor, scored: Tensor) -> Tensor:
        import torch

        count = scored.sum().clamp(min=1)
        centred_closeness = (closeness - closeness.sum() / count).masked_fill(~scored, 0.0)
        centred_scores = (score - score.sum() / count).masked_fill(~scored, 0.0)
        squares = torch.stack([centred_closeness.square().sum(), centred_scores.square().sum()])
        eps = torch.finfo(closeness.dtype).eps
        smallest_variance = max(SMALLEST_SPREAD, 4 * eps * math.sqrt(len(closeness))) ** 2
        varies = (squares > smallest_variance).all()
        # The root of zero has no gradient, so without a spread the root of one is taken.
        lengths = torch.where(varies, squares, 1.0).sqrt()
        covariance = (centred_closeness * centred_scores).sum()
        return torch.where(varies, 1 - covariance / lengths.prod(), 0 * covariance)


@dataclass(frozen=True, kw_only=True)
class TemperedPairLoss(PairLoss):
    """Loss of a batch's scored pairs that compares their cosines over a temperature."""

    temperature: Positive = 0.05
    """Divisor of the cosines, and of the targets if the loss has some."""


@dataclass(frozen=True, kw_only=True)
class PRO(TemperedPairLoss):
    """Preference ranking: contrast of each pair with pairs of a lower score (CoDiEmb, arXiv:2508.11442).

    The pairs are every anchor with each of its scored positives and negatives. Pair k is compared with all
    pairs j of a lower score, y_j < y_k. With the gaps w_kj = y_k - y_j, and their maximum w_k, its term is
    minus the logarithm of e^(cos_k · w_k / T) / (e^(cos_k · w_k / T) + sum over j of e^(cos_j · w_kj / T)),
    where T is `temperature`. As in the authors' code, pairs with equal scores are not negatives of each
    other; the paper's equation 8 leaves this open. As in the code, and not in the equation, the terms are
    averaged over the pairs that have a pair with a lower score. Without any such pair the loss is 0. Gaps
    multiply the cosines: so a number added to all cosines changes the loss, and among pairs with negative
    cosines those with wider gaps weigh less. The table of pairs is computed in blocks. By default each rank
    computes the loss of its own rows.

    Example:
        data: ./datasets.yaml
        loss: {by_task: {retrieval: infonce, sts: pro}}
    """

    def compute_from_pairs(self, closeness: Tensor, score: Tensor, scored: Tensor) -> Tensor:
        import torch

        scaled = closeness / self.temperature

        def block(rows: slice) -> Tensor:
            """Return each pair's term, and 1 if the pair has a term, else 0 [rows, 2]."""
            gap = score[rows, None] - score[None]
            is_below = (gap > TIE_TOLERANCE) & scored[rows, None] & scored[None]
            logits = (scaled * gap).masked_fill(~is_below, find_lowest_score(scaled))
            positive_logits = scaled[rows] * gap.masked_fill(~is_below, 0.0).amax(1)
            others_logsumexp = logits.logsumexp(1) - positive_logits
            any_below = is_below.any(1)
            terms = torch.logaddexp(others_logsumexp, torch.zeros_like(others_logsumexp))
            return torch.stack([terms.masked_fill(~any_below, 0.0), any_below], dim=1)

        total, count = apply_blockwise(len(closeness), len(closeness), block).sum(0)
        mean: Tensor = total / count.clamp(min=1)
        return mean


@dataclass(frozen=True, kw_only=True)
class RankKL(TemperedPairLoss):
    """Divergence of a batch's cosines from the ranks of its scores (CoDiEmb, arXiv:2508.11442).

    The pairs are every anchor with each of its scored positives and negatives. Among n pairs in descending
    order of score, the pair of rank r (counted from 0; equal scores have their mean rank) has the target R =
    (n - 1 - r) / (n - 1). The loss is the Kullback-Leibler divergence of softmax(cos / temperature) from
    softmax(R / temperature). Ranks do not depend on the distribution of a dataset's scores. The loss is
    divided by n, as the authors' code does and its weight of 5 expects, and not the paper's equation 6.
    In a batch with equal scores, the loss draws all cosines towards one value. By default each rank computes
    the loss of its own rows.

    Example:
        data: ./datasets.yaml
        loss: {by_task: {retrieval: infonce, sts: rank_kl}}
    """

    def compute_from_pairs(self, closeness: Tensor, score: Tensor, scored: Tensor) -> Tensor:

        def log_shares(values: Tensor) -> Tensor:
            scaled = values / self.temperature
            return scaled.masked_fill(~scored, find_lowest_score(scaled)).log_softmax(0)

        log_predicted, log_targets = log_shares(closeness), log_shares(_rank_targets(score, scored))
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
