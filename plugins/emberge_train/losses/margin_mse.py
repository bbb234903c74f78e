"""Margin MSE: a loss that makes the margin between positive and negative equal to a teacher's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import ALL_KINDS, EmbeddingKind, Embeddings, Loss

from emberge_train.losses.guided_loss import teacher_scores

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MarginMSE(Loss):
    """Squared error from a teacher's margins (Hofstätter et al., 2020, arXiv:2010.02666).

    The loss is the mean over rows of the mean over a row's positives c and negatives k of ((s(c) - s(k)) -
    (t(c) - t(k)))², where t are the teacher's scores in the data and s are the similarities to the anchor.
    Scores in the data are scaled to 0–1, about the range of cosines of similar texts. By default each rank
    compares only its own rows.

    Example:
        trained:
          train:
            model: ./base
            data: ./scored.jsonl
            loss: margin_mse
            sampler: batch_shuffle
    """

    cross_rank: bool = False

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"negative", "positive_score", "negative_score"})

    @property
    def kinds(self) -> frozenset[EmbeddingKind]:
        return ALL_KINDS

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        teacher, is_scored = teacher_scores(embeddings, "margin_mse")
        score_errors = embeddings.closeness - teacher
        slots = embeddings.positive.shape[1]
        squares = (score_errors[:, :slots, None] - score_errors[:, None, slots:]) ** 2
        pairs = is_scored[:, :slots, None] & is_scored[:, None, slots:]
        rows = squares.masked_fill(~pairs, 0.0).sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)
        return rows.sum() / max(1, len(rows))
