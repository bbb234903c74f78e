"""Kinds of embeddings, and the comparison of two."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from emberge.numerics import blockwise, log_sum_products, lowest_score, unit_vectors

if TYPE_CHECKING:
    from torch import Tensor

EmbeddingKind: TypeAlias = Literal["vector", "sparse", "token_vectors", "pair_score"]
"""Kind of output of a backbone: for a text one vector, a sparse vector over a vocabulary, or a vector for
each token, zero at padding; or for a pair of texts a score."""
ALL_KINDS: frozenset[EmbeddingKind] = frozenset({"vector", "sparse", "token_vectors", "pair_score"})
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
        return unit_vectors(embeddings) if self.unit else embeddings

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
        barred: Callable[[slice], Tensor | None],
        scale: float = 1.0,
    ) -> Tensor:
        """Return log Σ_j e^(scale · score_ij) [k] over the table's columns j, in blocks of rows.

        `barred(block)` is a mask [rows of the block, m] of omitted entries, or None. A row without an entry
        gives a very low number with a gradient of zero.
        """
        return log_sum_products(left * scale, right, barred)


@dataclass(frozen=True)
class MaxSim(Similarity):
    """Late interaction (ColBERT: Khattab and Zaharia, 2020, arXiv:2004.12832) of token vectors [t, d].

    The score of a query and a document is the sum over the query's tokens of the largest product with a token
    of the document. Vectors of tokens that do not count, as padding, are zero. Texts of a table may have
    different numbers of tokens on its two sides.
    """

    kind: EmbeddingKind = "token_vectors"

    def own_scores(self, left: Tensor, right: Tensor) -> Tensor:
        import torch

        products = torch.einsum("isd,ictd->icst", left, right)
        return _sum_largest(products, _is_padding(right)[:, :, None])

    def table(self, left: Tensor, right: Tensor) -> Tensor:
        # One product of matrices is many times faster than an einsum over four dimensions.
        products = (left.flatten(0, 1) @ right.flatten(0, 1).T).view(
            left.shape[0], left.shape[1], right.shape[0], right.shape[1]
        )
        return _sum_largest(products.transpose(1, 2), _is_padding(right)[None, :, None])

    def log_sums(
        self,
        left: Tensor,
        right: Tensor,
        barred: Callable[[slice], Tensor | None],
        scale: float = 1.0,
    ) -> Tensor:
        if not len(right):
            return log_sum_products(left.sum(1), right.sum(1), barred)
        cells_a_row = left.shape[1] * right.shape[0] * right.shape[1]

        def of_block(block: slice) -> Tensor:
            scores, is_omitted = self.table(left[block], right) * scale, barred(block)
            if is_omitted is not None:
                scores = scores.masked_fill(is_omitted, lowest_score(scores))
            return scores.logsumexp(dim=1)

        return blockwise(len(left), cells_a_row, of_block)


def _is_padding(vectors: Tensor) -> Tensor:
    """Return the mask [..., t] of token vectors [..., t, d] that do not count."""
    return (vectors == 0).all(-1)


def _sum_largest(products: Tensor, padding: Tensor) -> Tensor:
    """Return the sum over s of the largest product over t, of products [..., s, t] without padding t.

    A zero row of the left gives 0. A text on the right without any token gives 0, too.
    """
    import torch

    lowest = torch.finfo(products.dtype).min / 4
    largest = products.masked_fill(padding, lowest).amax(-1)
    return largest.masked_fill(padding.all(-1), 0.0).sum(-1)


COSINE = Similarity()
