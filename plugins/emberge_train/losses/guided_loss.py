"""Losses that read a teacher: with the guide that they learn from, and its embeddings of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Embeddings, Guide, Loss, unit_vectors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class GuidedLoss(Loss):
    """Loss of a model's embeddings and its guide's, which is the teacher, on pairs or single texts."""

    guide: Guide | None = None
    """The teacher, as of a step `distil`."""

    @property
    def guided_by(self) -> Guide | None:
        return self.guide

    @property
    def lacks_guide(self) -> bool:
        return self.guide is None

    @property
    def takes_single_texts(self) -> bool:
        return True


def require_guide(embeddings: Embeddings, loss: str) -> Embeddings:
    """Return the guide's embeddings of a batch.

    Raises:
        ValueError: if the batch lacks them.
    """
    if embeddings.guide is None:
        raise ValueError(f"{loss} needs a guide, and these embeddings lack one's")
    return embeddings.guide


def require_guide_of_size(embeddings: Embeddings, loss: str) -> Embeddings:
    """Return the guide's embeddings of a batch, which have the size of the model's.

    Raises:
        ValueError: if the batch lacks them, or they have another size.
    """
    guide = require_guide(embeddings, loss)
    size, guide_size = embeddings.anchor.shape[-1], guide.anchor.shape[-1]
    if size != guide_size:
        raise ValueError(
            f"{loss}: the guide's embeddings have {guide_size} numbers and the model's {size}; name a guide "
            "of the same size"
        )
    return guide


def squared_distances(vectors: Tensor, others: Tensor) -> Tensor:
    """Return the squared distances of embeddings, scaled to length one."""
    return ((unit_vectors(vectors) - unit_vectors(others)) ** 2).sum(-1)
