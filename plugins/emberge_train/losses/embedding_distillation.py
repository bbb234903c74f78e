"""Embedding distillation: a loss that makes a student's embeddings equal to its teacher's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import Embeddings

from emberge_train.losses.guided_loss import (
    GuidedLoss,
    require_guide_of_size,
    squared_distances,
)

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
        small:
          train:
            model: ./shallow
            data: {path: ./texts.jsonl, task: text}
            loss: {embedding_distillation: {guide: {model: ./teacher}}}
            sampler: batch_shuffle
    """

    distance: Literal["cosine", "l2"] = "cosine"

    @property
    def compares_with_guide(self) -> bool:
        return True

    @property
    def takes_single_texts(self) -> bool:
        return True

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        teacher = require_guide_of_size(embeddings, "embedding_distillation")
        total = self._distances(embeddings.anchor, teacher.anchor).sum()
        candidates = self._distances(embeddings.candidates, teacher.candidates)
        total = total + candidates.masked_fill(~embeddings.valid, 0.0).sum()
        return total / max(1, len(embeddings.anchor) + int(embeddings.valid.sum()))

    def _distances(self, vectors: Tensor, teacher: Tensor) -> Tensor:
        if self.distance == "l2":
            return ((vectors - teacher) ** 2).sum(-1)
        return squared_distances(vectors, teacher) / 2
