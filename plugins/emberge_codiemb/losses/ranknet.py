"""RankNet: a loss that gives the pair with the higher score the higher cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import Positive
from emberge.numerics import blockwise

from emberge_codiemb.losses.pairs import PairLoss, require_positive

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RankNet(PairLoss):
    """Pairwise ranking: sum of log(1 + e^(cos_j - cos_i)) over all y_i > y_j (Burges et al., 2005, ICML).

    It is a baseline of CoDiEmb (arXiv:2508.11442). The pairs are every anchor with each of its scored
    positives and negatives; their cosines are multiplied by `scale`. The sum grows with the square of the
    batch size; `reduction: mean` divides it by the number of comparisons. The table of comparisons is
    computed in blocks. By default each rank computes the loss of its own rows.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: {by_task: {retrieval: infonce, sts: ranknet}}
            sampler: batch_shuffle
    """

    scale: Positive = 1.0
    reduction: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        require_positive(self.scale, "scale")

    def of_pairs(self, cosine: Tensor, score: Tensor, scored: Tensor) -> Tensor:
        import torch

        cosine = self.scale * cosine

        def block(rows: slice) -> Tensor:
            """Return each pair's sum over the pairs with a lower score, and those pairs' number [rows, 2]."""
            is_above = (score[rows, None] > score[None]) & scored[rows, None] & scored[None]
            gaps = cosine[None] - cosine[rows, None]
            terms = torch.logaddexp(gaps, torch.zeros_like(gaps)).masked_fill(~is_above, 0.0)
            return torch.stack([terms.sum(1), is_above.sum(1)], dim=1)

        total: Tensor
        total, count = blockwise(len(cosine), len(cosine), block).sum(0)
        return total / count.clamp(min=1) if self.reduction == "mean" else total
