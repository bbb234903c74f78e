"""Scored pairs of a batch: cosine and gold score of every anchor with each of its texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberge import Embeddings, unit_vectors

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["scored_pairs"]


def scored_pairs(e: Embeddings, loss: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return (cosine, score, mask of scored pairs), each [m]; the first two are zero where there is none.

    Raises:
        ValueError: where nothing has a score.
    """
    import torch

    if e.positive_score is None and e.negative_score is None:
        raise ValueError(f"{loss} needs scores")
    cosine = torch.einsum("id,icd->ic", unit_vectors(e.anchor), unit_vectors(e.candidates))
    score = e.scores.flatten()
    there = e.valid.flatten() & ~score.isnan()
    return cosine.flatten().masked_fill(~there, 0.0), score.masked_fill(~there, 0.0), there
