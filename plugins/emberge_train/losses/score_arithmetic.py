"""Scores of a teacher and of its student, for losses that compare them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from emberge import Embeddings

if TYPE_CHECKING:
    from torch import Tensor


def teacher_scores(e: Embeddings, loss: str) -> tuple[Tensor, Tensor]:
    """Return the teacher's scores of the candidates [b, p + n], 0 where missing, and their mask.

    Raises:
        ValueError: if all positives or all negatives lack scores.
    """
    if e.positive_score is None or (e.negative_score is None and e.negative.shape[1]):
        raise ValueError(f"{loss} needs a teacher's scores of positives and negatives")
    scores = e.scores
    is_scored = e.valid & ~scores.isnan()
    return scores.masked_fill(~is_scored, 0.0), is_scored


def student_scores(e: Embeddings, similarity: Literal["cosine", "dot"] | None) -> Tensor:
    """Return the similarity of every anchor and its candidates [b, p + n], by default the model's own."""
    if similarity is not None:
        e = replace(e, similarity=replace(e.similarity, unit=similarity == "cosine"))
    return e.closeness
