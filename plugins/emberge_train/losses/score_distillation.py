"""Losses that learn a teacher's scores of the texts of a row: margins, or probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import ALL_KINDS, Embeddings, Loss, Positive
from emberge.numerics import find_lowest_score

from emberge_train.losses.guided_loss import Guide, GuidedLoss, require_guide

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MarginMSE(Loss):
    """Squared error from a teacher's margins (Hofstätter et al., 2020, arXiv:2010.02666).

    The loss is the mean over rows of the mean over a row's positives c and negatives k of ((s(c) - s(k)) -
    (t(c) - t(k)))², where t are the teacher's scores in the data and s are the similarities to the anchor.
    Scores in the data are scaled to 0–1, about the range of cosines of similar texts.

    Example:
        data: ./scored.jsonl
        loss: margin_mse
    """

    cross_rank: bool = False
    compares_rows = False
    needs = frozenset({"negative", "positive_score", "negative_score"})
    kinds = ALL_KINDS

    def __call__(self, embeddings: Embeddings) -> Tensor:
        teacher, is_scored = _read_teacher_scores(embeddings, "margin_mse")
        score_errors = embeddings.closeness - teacher
        slots = embeddings.positive.shape[1]
        squares = (score_errors[:, :slots, None] - score_errors[:, None, slots:]) ** 2
        pairs = is_scored[:, :slots, None] & is_scored[:, None, slots:]
        rows = squares.masked_fill(~pairs, 0.0).sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)
        return rows.sum() / max(1, len(rows))


@dataclass(frozen=True, kw_only=True)
class KLDistillation(GuidedLoss):
    """Divergence from a teacher's distribution over the texts of a row (Lin et al., 2020, arXiv:2010.11386).

    The loss is the mean over rows of sum_c p_c (log p_c - log q_c) over a row's positives and negatives, with
    p the softmax of the teacher's scores in the data over `temperature`, and q that of the `similarity` to
    the anchor over it. Scores in the data are scaled to 0–1, so the temperature should be small.

    With a `guide`, which is the teacher, its cosines to the anchor are used, and the data needs no scores.
    The model may then be a student of another size, and in a step `distil` the guide is its teacher.

    Example:
        data: ./scored.jsonl
        loss: {kl_distillation: {temperature: 0.05}}
    """

    temperature: Positive = 0.05
    guide: Guide | None = None
    """Teacher whose cosines replace the scores of the data."""
    cross_rank: bool = False
    compares_rows = False
    kinds = ALL_KINDS
    lacks_guide = False  # scores in the data do as well

    @property
    def needs(self) -> frozenset[str]:
        scores = frozenset({"positive_score", "negative_score"})
        return frozenset({"negative"}) | (scores if self.guide is None else frozenset())

    def __call__(self, embeddings: Embeddings) -> Tensor:
        import torch

        teacher, is_scored = self._read_teacher(embeddings)
        floor = find_lowest_score(teacher)

        def logs(scores: Tensor) -> Tensor:
            return torch.log_softmax(
                (scores / self.temperature).masked_fill(~is_scored, floor), dim=1
            )

        teacher_logs = logs(teacher)
        student_logs = logs(embeddings.closeness)
        rows = (
            (teacher_logs.exp() * (teacher_logs - student_logs)).masked_fill(~is_scored, 0.0).sum(1)
        )
        return rows.sum() / max(1, len(rows))

    def _read_teacher(self, embeddings: Embeddings) -> tuple[Tensor, Tensor]:
        """Return the teacher's scores of the candidates [b, p + n], and the mask of those that it scored."""
        if self.guide is None:
            return _read_teacher_scores(embeddings, "kl_distillation")
        guide = require_guide(embeddings, "kl_distillation")
        return guide.closeness, embeddings.valid


def _read_teacher_scores(e: Embeddings, loss: str) -> tuple[Tensor, Tensor]:
    """Return the teacher's scores of the candidates [b, p + n], 0 where missing, and their mask.

    Raises:
        ValueError: if all positives or all negatives lack scores.
    """
    if e.positive_score is None or (e.negative_score is None and e.negative.shape[1]):
        raise ValueError(f"{loss} needs a teacher's scores of positives and negatives")
    scores = e.scores
    is_scored = e.valid & ~scores.isnan()
    return scores.masked_fill(~is_scored, 0.0), is_scored
