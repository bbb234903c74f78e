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

    With `side: documents` the mean over rows of the mean over a row's positives and negatives of
    |x - g|² = 2 - 2 cos(x, g), where x is a document's embedding and g that of the `guide`, the old model,
    both of length one: what is embedded from now on is near what an index has of it.

    With `side: queries` the same of anchors: queries stay where the old model puts them. With `side: query`
    anchors are contrasted with the guide's documents in place of their own, by the cosine over `temperature`
    (InfoNCE): queries learn to find what an index has, and documents get no gradient of it.

    Texts of the other side do not go through the trained model, unless another loss of a sum reads them. A
    training of queries alone over whole epochs embeds the guide's texts first, keeps them on disk, and has
    no guide in memory after that. A router's own term of the loss then counts the texts of one side.

    The guide reads texts with its own prompts and has embeddings of the trained model's size. As a part of a
    sum its `weight` says how much of the old space is kept.

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
    """Texts that are kept, or `query` for queries that search the guide's documents."""
    temperature: Annotated[Positive, Requires("side", value="query")] = 0.05
    """Divisor of the cosines, with `side: query` alone."""

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
        old = embeddings.guide
        if old is None:
            raise ValueError("keep_space has a guide, and these embeddings come without one's")
        if old.anchor.shape[-1] != embeddings.anchor.shape[-1]:
            raise ValueError(
                f"keep_space: the guide's embeddings have {old.anchor.shape[-1]} numbers and the model's "
                f"{embeddings.anchor.shape[-1]}; name a guide of the same size"
            )
        if self.side == "query":
            old_texts = dataclasses.replace(
                embeddings, positive=old.positive, negative=old.negative
            )
            return InfoNCE(temperature=self.temperature)(old_texts, {})
        if self.side == "queries":
            return _compute_squared_distances(embeddings.anchor, old.anchor).mean()
        valid = embeddings.valid
        apart = _compute_squared_distances(embeddings.candidates, old.candidates).masked_fill(
            ~valid, 0.0
        )
        rows = apart.sum(1) / valid.sum(1).clamp(min=1)
        return rows.sum() / max(1, len(rows))


def _compute_squared_distances(new: Tensor, old: Tensor) -> Tensor:
    """Return the squared distances of embeddings at length one."""
    return ((unit_vectors(new) - unit_vectors(old)) ** 2).sum(-1)
