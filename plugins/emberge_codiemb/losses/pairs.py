"""Losses of scored pairs: cosine and gold score of every anchor with each of its texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import ALL_KINDS, EmbeddingKind, Embeddings, Loss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class PairLoss(Loss):
    """Loss of a batch's scored pairs, which learns from how their scores differ; local to a rank by default.

    A subclass implements `of_pairs`. The pairs are every anchor with each of its scored positives and
    negatives.
    """

    cross_rank: bool = False

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"positive_score"})

    @property
    def kinds(self) -> frozenset[EmbeddingKind]:
        return ALL_KINDS

    def check_scores(self, lowest: float, highest: float) -> Sequence[str]:
        if lowest < highest:
            return ()
        return (
            f"all scores are {highest:g}, and it learns from how they differ; give scores that differ, or "
            "choose another loss under by_dataset",
        )

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        e = embeddings
        if e.positive_score is None and e.negative_score is None:
            raise ValueError(f"{type(self).__name__} needs scores")
        score = e.scores.flatten()
        scored = e.valid.flatten() & ~score.isnan()
        closeness = e.closeness.flatten().masked_fill(~scored, 0.0)
        return self.of_pairs(closeness, score.masked_fill(~scored, 0.0), scored)

    def of_pairs(self, cosine: Tensor, score: Tensor, scored: Tensor) -> Tensor:
        """Return the loss of pairs [m]; `scored` marks pairs with a score, and other values are 0."""
        raise NotImplementedError
