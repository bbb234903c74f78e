"""Embedding distillation: a loss that makes a student's embeddings equal to its teacher's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import Embeddings, Guide, Loss, unit_vectors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class EmbeddingDistillation(Loss):
    """Distance of each text's embedding from the teacher's (LEAF: Vujanic and Rueckstiess, 2025, 2509.12539).

    The loss is the mean over the batch's texts, anchors, positives and negatives alike, of a `distance`
    between the embedding x and the `guide`'s embedding g, which is the teacher:
    - `cosine`: 1 - cos(x, g), half the squared distance of the vectors scaled to length one;
    - `l2`: |x - g|², the sum over dimensions, of vectors as both models return them.

    No labels, scores or negatives are needed, and single texts (the task `text`) suffice. The vectors of both
    models must have one size. In `matryoshka`, the first numbers of a vector learn the first numbers of the
    teacher's. The student then answers searches in the teacher's index.

    Example:
        small:
          train:
            model: ./shallow
            data: {path: ./texts.jsonl, task: text}
            loss: {embedding_distillation: {guide: {model: ./teacher}}}
            sampler: batch_shuffle
    """

    distance: Literal["cosine", "l2"] = "cosine"
    guide: Guide | None = None
    """The teacher; in a step `distil`, its teachers."""

    @property
    def guided_by(self) -> Guide | None:
        return self.guide

    @property
    def compares_with_guide(self) -> bool:
        return True

    @property
    def lacks_guide(self) -> bool:
        return self.guide is None

    @property
    def takes_single_texts(self) -> bool:
        return True

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        teacher = embeddings.guide
        if teacher is None:
            raise ValueError(
                "embedding_distillation needs a guide, and these embeddings lack one's"
            )
        sizes = embeddings.anchor.shape[-1], teacher.anchor.shape[-1]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"embedding_distillation: the teacher's embeddings have {sizes[1]} numbers and the model's "
                f"{sizes[0]}; name a teacher of the same size"
            )
        total = self._distances(embeddings.anchor, teacher.anchor).sum()
        candidates = self._distances(embeddings.candidates, teacher.candidates)
        total = total + candidates.masked_fill(~embeddings.valid, 0.0).sum()
        return total / max(1, len(embeddings.anchor) + int(embeddings.valid.sum()))

    def _distances(self, vectors: Tensor, teacher: Tensor) -> Tensor:
        if self.distance == "l2":
            return ((vectors - teacher) ** 2).sum(-1)
        return ((unit_vectors(vectors) - unit_vectors(teacher)) ** 2).sum(-1) / 2
