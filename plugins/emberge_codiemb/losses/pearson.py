"""Pearson: a loss that makes cosines a linear function of the scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge_codiemb.losses.pairs import PairLoss

if TYPE_CHECKING:
    from torch import Tensor

# A spread below this, or below what rounding makes of equal numbers, is none.
NO_SPREAD = 1e-8


@dataclass(frozen=True, kw_only=True)
class Pearson(PairLoss):
    """Correlation of a batch's cosines with their scores, subtracted from one (CoDiEmb, arXiv:2508.11442).

    The pairs are every anchor with each of its scored positives and negatives. A batch whose scores or
    cosines are all equal has no correlation: its loss is 0, with a gradient of zero. By default each rank
    computes the loss of its own rows.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: {by_task: {retrieval: infonce, sts: pearson}}
            sampler: batch_shuffle
    """

    def of_pairs(self, cosine: Tensor, score: Tensor, scored: Tensor) -> Tensor:
        import torch

        count = scored.sum().clamp(min=1)
        centred_cosines = (cosine - cosine.sum() / count).masked_fill(~scored, 0.0)
        centred_scores = (score - score.sum() / count).masked_fill(~scored, 0.0)
        squares = torch.stack([centred_cosines.square().sum(), centred_scores.square().sum()])
        eps = torch.finfo(cosine.dtype).eps
        smallest_variance = max(NO_SPREAD, 4 * eps * math.sqrt(len(cosine))) ** 2
        varies = (squares > smallest_variance).all()
        # The root of what is no spread has no gradient, so it is taken of a one instead.
        lengths = torch.where(varies, squares, 1.0).sqrt()
        covariance = (centred_cosines * centred_scores).sum()
        return torch.where(varies, 1 - covariance / lengths.prod(), 0 * covariance)
