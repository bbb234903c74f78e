"""Spread-out loss: texts of different rows get vectors at right angles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Embeddings, Loss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SpreadOut(Loss):
    """Mean squared cosine of texts of different rows (Zhang et al., 2017, arXiv:1708.06320).

    The loss is the mean over rows i ≠ j of cos(a_i, a_j)² of the anchors [b, d], plus the same mean of the
    positives [b, p, d], as in EmbeddingGemma (arXiv:2509.20354), which leaves out the first paper's mean of
    the cosines and its threshold 1 / d. Several positives of a row are compared with those of other rows
    only. Negatives and scores are not read: of pairs with scores (sts), too, only different pairs are
    spread, never a pair's own two texts. A batch of one row gives 0. It stands in a sum with a loss that
    ranks, and its `weight` decides how far vectors are spread. In a short training of MiniLM only vectors
    stored as signs gained, 0.9 points in retrieval (`boom/spread`).

    Example:
        loss: [infonce, {spread_out: {weight: 1}}]
    """

    def __call__(self, embeddings: Embeddings) -> Tensor:
        compare, slots = embeddings.similarity, embeddings.positive.shape[1]
        positives = compare.prepared(embeddings.positive)
        valid = embeddings.valid[:, :slots]
        anchors = compare.prepared(embeddings.anchor)[:, None]
        return _compute_spread(anchors, valid.new_ones(len(valid), 1)) + _compute_spread(
            positives.masked_fill(~valid[..., None], 0.0), valid
        )


def _compute_spread(units: Tensor, valid: Tensor) -> Tensor:
    """Return the mean squared product of valid vectors of different rows; others of [b, s, d] are zeros.

    The sum over all pairs is the squared norm of the product [d, d] of the dimensions, so that memory does
    not grow with the square of the rows; pairs of one row are subtracted.
    """
    flat = units.flatten(0, 1)
    total = (flat.T @ flat).square().sum() - (units @ units.mT).square().sum()
    pairs = valid.sum() ** 2 - (valid.sum(1) ** 2).sum()
    return total / pairs.clamp(min=1)
