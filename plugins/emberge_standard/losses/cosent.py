"""CoSENT: pairs with a higher score shall have a higher cosine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Embeddings, Loss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CoSENT(Loss):
    """Order the cosines of a batch's pairs as their scores are ordered (Su, 2022, kexue.fm/archives/8847).

    log(1 + sum over pairs of pairs with y_i > y_j of e^(scale · (cos_j - cos_i))). The pairs are every anchor
    with each of its scored positives, and with its negatives where those are scored too. `scale` is one over
    the temperature. `unscored` takes positives without a score as 1 and negatives as 0, which is the CoSENT
    baseline for retrieval data (CoDiEmb, arXiv:2508.11442). Local to a rank by default.
    """

    scale: float = 20.0
    unscored: bool = False
    cross_rank: bool = False

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"scale must be above 0, not {self.scale:g}")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset() if self.unscored else frozenset({"positive_score"})

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        import torch

        cosine, score, valid = self._pairs(embeddings)
        cosine, score, valid = cosine.flatten(), score.flatten(), valid.flatten()
        ordered = (score[:, None] > score[None, :]) & valid[:, None] & valid[None, :]
        gaps = self.scale * (cosine[None, :] - cosine[:, None])
        floor = torch.finfo(gaps.dtype).min / 4
        gaps = gaps.masked_fill(~ordered, floor).flatten()
        return torch.logsumexp(torch.cat([gaps.new_zeros(1), gaps]), dim=0)

    def _pairs(self, e: Embeddings) -> tuple[Tensor, Tensor, Tensor]:
        import torch
        from torch.nn.functional import cosine_similarity

        slots = e.positive.shape[1]
        cosines = [cosine_similarity(e.anchor[:, None], e.positive, dim=-1)]
        scores = [self._scores(e.positive_score, cosines[0], 1.0)]
        valid = [e.valid[:, :slots]]
        if e.negative.shape[1] and (e.negative_score is not None or self.unscored):
            cosines.append(cosine_similarity(e.anchor[:, None], e.negative, dim=-1))
            scores.append(self._scores(e.negative_score, cosines[1], 0.0))
            valid.append(e.valid[:, slots:])
        return torch.cat(cosines, 1), torch.cat(scores, 1), torch.cat(valid, 1)

    def _scores(self, given: Tensor | None, like: Tensor, otherwise: float) -> Tensor:
        import torch

        if given is not None:
            return given
        if not self.unscored:
            raise ValueError("cosent needs scores; set unscored: true for data without them")
        return torch.full_like(like, otherwise)
