"""Description of a search by several models, which is scored like a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emberge.contracts.backbone import Backbone
    from emberge.contracts.reference import ModelRef


@dataclass(frozen=True, slots=True)
class StackedModel:
    """Model of a whole search, and the backbone that loads it."""

    model: ModelRef
    backbone: Backbone


@dataclass(frozen=True, slots=True)
class SearchStack:
    """A search by several models: retrievers find documents, and a reranker reorders the best of them.

    The lists of several retrievers are fused, by reciprocal ranks or, with `weights`, by a weighted sum of
    scores, each list's scores scaled to 0 to 1. `rank_constant` is added to each rank (Cormack et al., 2009).
    The reranker reorders the first `depth` documents of each query; the others keep their order. Below 1,
    `reranker_share` mixes its scores with the retrievers', both scaled to 0 to 1 over these documents.
    """

    retrievers: tuple[StackedModel, ...]
    reranker: StackedModel | None = None
    depth: int = 100
    weights: tuple[float, ...] = ()
    rank_constant: int = 60
    reranker_share: float = 1.0

    @property
    def models(self) -> tuple[StackedModel, ...]:
        """All models, in the order in which they work."""
        return (*self.retrievers, *([self.reranker] if self.reranker is not None else []))
