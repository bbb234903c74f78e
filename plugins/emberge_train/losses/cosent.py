"""CoSENT: a loss that gives pairs with a higher score a higher cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import ALL_KINDS, Embeddings, Loss, Positive
from emberge.numerics import find_lowest_score

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CoSENT(Loss):
    """Order of a batch's pairs by cosine, as their scores are (Su, 2022, kexue.fm/archives/8847).

    log(1 + sum over pairs of pairs with y_i > y_j of e^(scale · (cos_j - cos_i))). The pairs are every anchor
    with each of its scored positives, and with its negatives if they have scores. `scale` is one over the
    temperature. With `unscored` a positive without a score counts as 1 and a negative without a score as 0,
    as in the CoSENT baseline for retrieval data (CoDiEmb, arXiv:2508.11442). By default each rank compares
    only its own rows.

    Example:
        data: ./scored.jsonl
        loss: {cosent: {scale: 20}}
    """

    scale: Positive = 20.0
    """One over the temperature."""
    unscored: bool = False
    """Count positives without a score as 1 and negatives without a score as 0."""
    cross_rank: bool = False
    kinds = ALL_KINDS

    @property
    def needs(self) -> frozenset[str]:
        return frozenset() if self.unscored else frozenset({"positive_score"})

    def __call__(self, embeddings: Embeddings) -> Tensor:
        score = self._fill_scores(embeddings)
        return compute_ordering_loss(self.scale * embeddings.closeness, score, embeddings.valid)

    def _fill_scores(self, e: Embeddings) -> Tensor:
        """Return scores of the candidates [b, p + n]; with `unscored`, missing scores are 1 or 0."""
        import torch

        if not self.unscored:
            if e.positive_score is None and e.negative_score is None:
                raise ValueError("CoSENT needs scores; set unscored: true for data without them")
            return e.scores
        slots = e.positive.shape[1]
        is_positive = torch.arange(e.valid.shape[1], device=e.valid.device) < slots
        return torch.where(e.scores.isnan(), is_positive.to(e.scores.dtype), e.scores)


def compute_ordering_loss(value: Tensor, score: Tensor, valid: Tensor) -> Tensor:
    """Return log(1 + sum over pairs with score_i > score_j of e^(value_j - value_i)), tensors of one shape.

    The values are sorted by falling score, which makes the sum over i a running log-sum-exp. Values that are
    not `valid` or have no score (NaN) are ignored. For n values it takes time n log n and memory n.
    """
    import torch

    value, score = value.flatten(), score.flatten()
    is_scored = valid.flatten() & ~score.isnan()
    score, order = torch.where(is_scored, score, -torch.inf).sort(descending=True, stable=True)
    value, is_scored = value[order], is_scored[order]
    floor = find_lowest_score(value)
    running_sums = torch.logcumsumexp(torch.where(is_scored, -value, floor), dim=0)
    running_sums = torch.cat([running_sums.new_full((1,), floor), running_sums])
    higher_counts = torch.searchsorted(-score, -score)  # how many scores are strictly above
    terms = torch.where(is_scored, value + running_sums[higher_counts], floor)
    return torch.logsumexp(torch.cat([terms.new_zeros(1), terms]), dim=0)
