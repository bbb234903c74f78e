"""Kinds of embeddings, and the comparison of two."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from emberge.numerics import log_sum_products, scale_to_unit

if TYPE_CHECKING:
    from torch import Tensor

EmbeddingKind: TypeAlias = Literal["vector", "sparse", "token_vectors", "pair_score"]
"""Kind of output of a backbone: for a text one vector, a sparse vector over a vocabulary, or a vector for
each token, zero at padding; or for a pair of texts a score."""
ALL_KINDS: frozenset[EmbeddingKind] = frozenset(get_args(EmbeddingKind))
_KIND_WORDS: Mapping[EmbeddingKind, str] = {
    "vector": "one vector a text",
    "sparse": "sparse vectors over a vocabulary",
    "token_vectors": "a vector for each token",
    "pair_score": "a score for each pair of texts",
}


def describe_kinds(kinds: Collection[EmbeddingKind]) -> str:
    """Return the kinds in words for messages: `one vector a text or a vector for each token`."""
    return " or ".join(words for kind, words in _KIND_WORDS.items() if kind in kinds)


@dataclass(frozen=True)
class Similarity:
    """Comparison of embeddings: losses ask for scores here, and so work for each kind of embedding.

    An embedding is a tensor of the shape *e: [d] for a vector. Embeddings are first `prepared`, once; all
    other methods take prepared ones. Here a score is the cosine of two vectors or, without `unit`, their dot
    product, as for sparse vectors.
    """

    kind: EmbeddingKind = "vector"
    unit: bool = True
    """Scale vectors to length one first."""

    def prepared(self, embeddings: Tensor) -> Tensor:
        """Return embeddings [..., *e] in the form that is compared; the result has the same shape."""
        return scale_to_unit(embeddings) if self.unit else embeddings

    def own_scores(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the scores [b, c] of each embedding [b, *e] with its own others [b, c, *e]."""
        import torch

        return torch.einsum("id,icd->ic", left, right)

    def table(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the scores [k, m] of all embeddings of the left [k, *e] with all of the right [m, *e]."""
        return left @ right.T

    def log_sums(
        self,
        left: Tensor,
        right: Tensor,
        excluded: Callable[[slice], Tensor | None],
        scale: float = 1.0,
    ) -> Tensor:
        """Return log Σ_j e^(scale · score_ij) [k] over the table's columns j, in blocks of rows.

        `excluded(block)` is a mask [rows of the block, m] of omitted entries, or None. A row without an entry
        gives a very low number with a gradient of zero.
        """
        return log_sum_products(left * scale, right, excluded)


COSINE = Similarity()
