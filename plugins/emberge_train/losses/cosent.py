"""CoSENT: pairs with a higher score shall have a higher cosine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Embeddings, Loss, unit_vectors

from emberge_train.losses.flat_scores import scale_warnings
from emberge_train.losses.ordered import filled_scores, ordering_loss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CoSENT(Loss):
    """Order of a batch's pairs by cosine, as their scores are (Su, 2022, kexue.fm/archives/8847).

    log(1 + sum over pairs of pairs with y_i > y_j of e^(scale · (cos_j - cos_i))). The pairs are every anchor
    with each of its scored positives, and with its negatives where those are scored too. `scale` is one over
    the temperature. `unscored` takes positives without a score as 1 and negatives as 0, which is the CoSENT
    baseline for retrieval data (CoDiEmb, arXiv:2508.11442). Local to a rank by default.

    Example:
        trained:
          train:
            model: ./base
            data: ./scored.jsonl
            loss: {cosent: {scale: 20}}
            sampler: batch_shuffle
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

    def warnings(self) -> list[str]:
        return scale_warnings(self.scale)

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        import torch

        score = filled_scores(embeddings, "cosent", self.unscored)
        cosine = torch.einsum(
            "id,icd->ic", unit_vectors(embeddings.anchor), unit_vectors(embeddings.candidates)
        )
        return ordering_loss(self.scale * cosine, score, embeddings.valid)
