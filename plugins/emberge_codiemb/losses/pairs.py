"""Scored pairs of a batch: cosine and gold score of every anchor with each of its texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberge import Embeddings, unit_vectors

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["equal_scores", "require_positive", "scored_pairs"]


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


def equal_scores(lowest: float, highest: float) -> list[str]:
    """Return the reason why a loss of order learns nothing from scores that are all equal; else none."""
    if lowest < highest:
        return []
    return [
        f"all scores are {highest:g}, and it learns from their order alone; give scores that differ, or "
        "choose another loss under by_dataset"
    ]


def require_positive(value: float, option: str) -> None:
    """Refuse a divisor or factor of cosines that is not above 0.

    Raises:
        ValueError: naming the option.
    """
    if not value > 0:
        raise ValueError(f"{option} must be above 0, not {value:g}")
