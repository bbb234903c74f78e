"""Training into the embedding space of an old model, so that its stored vectors remain usable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Embeddings

from emberge_train.losses.guided_loss import (
    GuidedLoss,
    require_guide_of_size,
    squared_distances,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class KeepSpace(GuidedLoss):
    """Distance from an old model's embeddings (Shen et al., 2020, backward-compatible, arXiv:2003.11942).

    The loss is the mean over rows of the mean over a row's positives and negatives of |x - g|² = 2 - 2 cos(x,
    g). Here x is the document's embedding by the trained model and g its embedding by the `guide`, which is
    the old model; both have length one. Documents embedded after the training are then near their old
    vectors.

    The guide uses its own prompts, and its embeddings must have the size of the trained model's. In a sum of
    losses, `weight` sets how strongly the old space is kept.

    Example:
        trained:
          train:
            model: ./base
            data: ./pairs.jsonl
            loss: [infonce, {keep_space: {guide: {model: ./old}, weight: 0.3}}]
            sampler: batch_shuffle
    """

    @property
    def compares_with_guide(self) -> bool:
        return True

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        old_embeddings = require_guide_of_size(embeddings, "keep_space")
        valid = embeddings.valid
        distances = squared_distances(embeddings.candidates, old_embeddings.candidates)
        rows = distances.masked_fill(~valid, 0.0).sum(1) / valid.sum(1).clamp(min=1)
        return rows.sum() / max(1, len(rows))
