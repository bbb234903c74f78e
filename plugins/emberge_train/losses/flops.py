"""FLOPS: a loss that keeps sparse vectors sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Embeddings, Loss, NonNegative

if TYPE_CHECKING:
    from torch import Tensor


# Share of the training's steps in which the loss grows to its whole size.
_WARMUP = 1 / 3


@dataclass(frozen=True, kw_only=True)
class FLOPS(Loss):
    """Cost of a search with sparse vectors (Paria et al., 2020, arXiv:2004.05665), as SPLADE has it.

    The loss is the sum over tokens j of the vocabulary of (mean over texts of |w_j|)²: of the positives and
    negatives of a batch, times `documents`, plus that of the anchors, times `queries`. In the first third
    of the training's steps it grows with the square of the step, so that a model first learns which tokens
    matter (Formal et al., 2021, arXiv:2109.10086). It stands in a sum beside the loss that ranks, and its
    `weight` decides how sparse vectors get.

    Example:
        loss: [{infonce: {temperature: 1}}, {flops: {documents: 3e-3, queries: 5e-3}}]
        backbone: splade
    """

    documents: NonNegative = 3e-5
    """Factor of the documents' part."""
    queries: NonNegative = 5e-5
    """Factor of the queries' part; 0 for queries of static weights, which are sparse by themselves."""
    kinds = frozenset({"sparse"})

    def __call__(self, embeddings: Embeddings) -> Tensor:
        documents = embeddings.candidates[embeddings.valid]
        total = self.documents * _count_operations(documents)
        if self.queries:
            total = total + self.queries * _count_operations(embeddings.anchor)
        return total * min(1.0, embeddings.progress / _WARMUP) ** 2


def _count_operations(vectors: Tensor) -> Tensor:
    """Return the expected number of products of a search in texts with these vectors [n, v]."""
    return (vectors.abs().sum(0) / max(1, len(vectors))).square().sum()
