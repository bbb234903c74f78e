"""Training into the embedding space of an old model, so that its stored vectors remain usable."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from emberge import Embeddings, Guide, Loss, Positive, Requires

from emberge_train.losses.guided_loss import require_guide_of_size, squared_distances
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
        old_embeddings = require_guide_of_size(embeddings, "keep_space")
        if self.side == "query":
            old_texts = dataclasses.replace(
                embeddings, positive=old_embeddings.positive, negative=old_embeddings.negative
            )
            return InfoNCE(temperature=self.temperature)(old_texts, {})
        if self.side == "queries":
            return squared_distances(embeddings.anchor, old_embeddings.anchor).mean()
        valid = embeddings.valid
        distances = squared_distances(embeddings.candidates, old_embeddings.candidates)
        rows = distances.masked_fill(~valid, 0.0).sum(1) / valid.sum(1).clamp(min=1)
        return rows.sum() / max(1, len(rows))
