"""CoSENT: a loss that gives pairs with a higher score a higher cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import ALL_KINDS, EmbeddingKind, Embeddings

from emberge_train.losses.score_arithmetic import OrderLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CoSENT(OrderLoss):
    """Order of a batch's pairs by cosine, as their scores are (Su, 2022, kexue.fm/archives/8847).

    log(1 + sum over pairs of pairs with y_i > y_j of e^(scale · (cos_j - cos_i))). The pairs are every anchor
    with each of its scored positives, and with its negatives if they have scores. `scale` is one over the
    temperature. With `unscored` a positive without a score counts as 1 and a negative without a score as 0,
    as in the CoSENT baseline for retrieval data (CoDiEmb, arXiv:2508.11442). By default each rank compares
    only its own rows.

    Example:
        trained:
          train:
            model: ./base
            data: ./scored.jsonl
            loss: {cosent: {scale: 20}}
            sampler: batch_shuffle
    """

    @property
    def kinds(self) -> frozenset[EmbeddingKind]:
        return ALL_KINDS

    def values(self, embeddings: Embeddings) -> Tensor:
        return embeddings.closeness
