"""Training into the embedding space of an old model, so that its stored vectors remain usable."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from emberge import Embeddings, Guide, Loss, Positive, Requires, unit_vectors

from emberge_train.losses.infonce import InfoNCE

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class KeepSpace(Loss):
    """Distance from an old model's embeddings (Shen et al., 2020, backward-compatible, arXiv:2003.11942).

    With `side: documents` the loss is the mean over rows of the mean over a row's positives and negatives of
    |x - g|² = 2 - 2 cos(x, g). Here x is the document's embedding by the trained model and g its embedding by
    the `guide`, which is the old model; both have length one. Documents embedded after the training are then
    near their old vectors in an index.

    With `side: queries` the same distance is taken of anchors, so queries stay near their old embeddings.
    With `side: query` anchors are contrasted with the guide's embeddings of the documents, by the cosine over
    `temperature` (InfoNCE). Queries then learn to find the old vectors of an index, and documents get no
    gradient from this loss.

    The trained model does not embed the texts of the other side, unless another loss in the same sum reads
    them. If only queries are trained, for whole epochs, the guide first embeds all its texts and keeps the
    embeddings on disk; after that the guide is not in memory. A router's own loss term then counts only the
    texts of the trained side.

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

    guide: Guide
    """The old model."""
    side: Literal["documents", "queries", "query"] = "documents"
    """Side whose embeddings stay near the old ones, or `query` for queries on the guide's documents."""
    temperature: Annotated[Positive, Requires("side", value="query")] = 0.05
    """Divisor of the cosines; only with `side: query`."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature:g}")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"contrast"}) if self.side == "query" else frozenset()

    @property
    def embeds(self) -> frozenset[str]:
        documents = frozenset({"positive", "negative"})
        return documents if self.side == "documents" else frozenset({"anchor"})

    @property
    def guided_by(self) -> Guide | None:
        return self.guide

    @property
    def compares_with_guide(self) -> bool:
        return True

    def __call__(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        old_embeddings = embeddings.guide
        if old_embeddings is None:
            raise ValueError("keep_space has a guide, and these embeddings come without one's")
        if old_embeddings.anchor.shape[-1] != embeddings.anchor.shape[-1]:
            raise ValueError(
                f"keep_space: the guide's embeddings have {old_embeddings.anchor.shape[-1]} numbers and "
                "the model's "
                f"{embeddings.anchor.shape[-1]}; name a guide of the same size"
            )
        if self.side == "query":
            old_texts = dataclasses.replace(
                embeddings, positive=old_embeddings.positive, negative=old_embeddings.negative
            )
            return InfoNCE(temperature=self.temperature)(old_texts, {})
        if self.side == "queries":
            return _compute_squared_distances(embeddings.anchor, old_embeddings.anchor).mean()
        valid = embeddings.valid
        squared_distances = _compute_squared_distances(
            embeddings.candidates, old_embeddings.candidates
        ).masked_fill(~valid, 0.0)
        rows = squared_distances.sum(1) / valid.sum(1).clamp(min=1)
        return rows.sum() / max(1, len(rows))


def _compute_squared_distances(new: Tensor, old: Tensor) -> Tensor:
    """Return the squared distances of embeddings, scaled to length one."""
    return ((unit_vectors(new) - unit_vectors(old)) ** 2).sum(-1)
