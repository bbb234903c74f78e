"""PRO: each pair contrasted with all pairs of a lower score, weighted by the difference of scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Positive
from emberge.numerics import blockwise, lowest_score

from emberge_codiemb.losses.pairs import PairLoss

if TYPE_CHECKING:
    from torch import Tensor

# Scores no further apart are equal.
TIE = 1e-8


@dataclass(frozen=True, kw_only=True)
class PRO(PairLoss):
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
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: {by_task: {retrieval: infonce, sts: pro}}
            sampler: batch_shuffle
    """

    temperature: Positive = 0.05
    """Divisor of the cosines."""

    def of_pairs(self, cosine: Tensor, score: Tensor, scored: Tensor) -> Tensor:
        import torch

        scaled = cosine / self.temperature

        def block(rows: slice) -> Tensor:
            """Return each pair's term, and 1 if the pair has a term, else 0 [rows, 2]."""
            gap = score[rows, None] - score[None]
            is_below = (gap > TIE) & scored[rows, None] & scored[None]
            logits = (scaled * gap).masked_fill(~is_below, lowest_score(scaled))
            positive_logits = scaled[rows] * gap.masked_fill(~is_below, 0.0).amax(1)
            others_logsumexp = logits.logsumexp(1) - positive_logits
            any_below = is_below.any(1)
            terms = torch.logaddexp(others_logsumexp, torch.zeros_like(others_logsumexp))
            return torch.stack([terms.masked_fill(~any_below, 0.0), any_below], dim=1)

        total, count = blockwise(len(cosine), len(cosine), block).sum(0)
        mean: Tensor = total / count.clamp(min=1)
        return mean
