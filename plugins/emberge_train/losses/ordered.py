"""Loss on the order of pairs: their values are to be ordered as their scores are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberge import Embeddings, lowest_score

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["filled_scores", "ordering_loss"]


def filled_scores(e: Embeddings, loss: str, unscored: bool) -> Tensor:
    """Return scores of the candidates [b, p + n]; with `unscored` those without one are 1 or 0.

    Raises:
        ValueError: where nothing has a score and `unscored` is not set.
    """
    import torch

    if not unscored:
        if e.positive_score is None and e.negative_score is None:
            raise ValueError(f"{loss} needs scores; set unscored: true for data without them")
        return e.scores
    slots = e.positive.shape[1]
    otherwise = torch.arange(e.valid.shape[1], device=e.valid.device) < slots
    return torch.where(e.scores.isnan(), otherwise.to(e.scores.dtype), e.scores)


def ordering_loss(value: Tensor, score: Tensor, valid: Tensor) -> Tensor:
    """Return log(1 + sum over pairs with score_i > score_j of e^(value_j - value_i)), tensors of one shape.

    By falling score, the sum over i is a running log-sum-exp; places that are not `valid` or have no score
    (NaN) take no part. Time n log n and memory n, for n values.
    """
    import torch

    value, score = value.flatten(), score.flatten()
    there = valid.flatten() & ~score.isnan()
    score, order = torch.where(there, score, -torch.inf).sort(descending=True, stable=True)
    value, there = value[order], there[order]
    floor = lowest_score(value)
    above = torch.logcumsumexp(torch.where(there, -value, floor), dim=0)
    above = torch.cat([above.new_full((1,), floor), above])
    higher = torch.searchsorted(-score, -score)  # how many scores are strictly above
    terms = torch.where(there, value + above[higher], floor)
    return torch.logsumexp(torch.cat([terms.new_zeros(1), terms]), dim=0)
