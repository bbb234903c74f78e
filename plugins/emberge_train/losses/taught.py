"""Scores for distillation: a teacher's in the data, and the student's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberge import Embeddings, unit_vectors

if TYPE_CHECKING:
    from torch import Tensor


def teacher_scores(e: Embeddings, loss: str) -> tuple[Tensor, Tensor]:
    """Return the teacher's scores of the candidates [b, p + n], zeros where there are none, and their mask.

    Raises:
        ValueError: where positives or negatives have none at all.
    """
    if e.positive_score is None or (e.negative_score is None and e.negative.shape[1]):
        raise ValueError(f"{loss} needs a teacher's scores of positives and negatives")
    scores = e.scores
    there = e.valid & ~scores.isnan()
    return scores.masked_fill(~there, 0.0), there


def student_scores(e: Embeddings, similarity: str) -> Tensor:
    """Return cosines or dot products of every anchor with its candidates [b, p + n]."""
    import torch

    anchor, candidates = e.anchor, e.candidates
    if similarity == "cosine":
        anchor, candidates = unit_vectors(anchor), unit_vectors(candidates)
    return torch.einsum("id,icd->ic", anchor, candidates)
