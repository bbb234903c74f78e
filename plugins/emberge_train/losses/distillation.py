"""Losses that learn a teacher's embeddings, or an old model's space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import Embeddings, scale_to_unit

from emberge_train.losses.guided_loss import GuidedLoss, require_guide_of_size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class EmbeddingDistillation(GuidedLoss):
    """Distance of each text's embedding from the teacher's (LEAF: Vujanic and Rueckstiess, 2025, 2509.12539).

    The loss is the mean over the batch's texts, anchors, positives and negatives alike, of a `distance`
    between the embedding x and the `guide`'s embedding g, which is the teacher:
    - `cosine`: 1 - cos(x, g), half the squared distance of the vectors scaled to length one;
    - `l2`: |x - g|², the sum over dimensions, of vectors as both models return them.

    No labels, scores or negatives are needed, and single texts (the task `text`) suffice. The vectors of both
    models must have one size. In `matryoshka`, the first numbers of a vector learn the first numbers of the
    teacher's. The student's queries can then search documents that the teacher embedded.

    Example:
        model: ./shallow
        data: {path: ./texts.jsonl, task: text}
        loss: {embedding_distillation: {guide: {model: ./teacher}}}
    """

    distance: Literal["cosine", "l2"] = "cosine"
    compares_with_guide = True
    takes_single_texts = True

    def __call__(self, embeddings: Embeddings) -> Tensor:
        teacher = require_guide_of_size(embeddings, "embedding_distillation")
        total = self._compute_distances(embeddings.anchor, teacher.anchor).sum()
        candidates = self._compute_distances(embeddings.candidates, teacher.candidates)
        total = total + candidates.masked_fill(~embeddings.valid, 0.0).sum()
        return total / max(1, len(embeddings.anchor) + int(embeddings.valid.sum()))

    def _compute_distances(self, vectors: Tensor, teacher: Tensor) -> Tensor:
        if self.distance == "l2":
            return ((vectors - teacher) ** 2).sum(-1)
        return _compute_squared_distances(vectors, teacher) / 2


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
        loss: [infonce, {keep_space: {guide: {model: ./old}, weight: 0.3}}]
    """

    compares_with_guide = True

    def __call__(self, embeddings: Embeddings) -> Tensor:
        old_embeddings = require_guide_of_size(embeddings, "keep_space")
        valid = embeddings.valid
        distances = _compute_squared_distances(embeddings.candidates, old_embeddings.candidates)
        rows = distances.masked_fill(~valid, 0.0).sum(1) / valid.sum(1).clamp(min=1)
        return rows.sum() / max(1, len(rows))


def _compute_squared_distances(vectors: Tensor, others: Tensor) -> Tensor:
    """Return the squared distances of embeddings, scaled to length one."""
    return ((scale_to_unit(vectors) - scale_to_unit(others)) ** 2).sum(-1)
