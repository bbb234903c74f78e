"""Late interaction: the comparison of texts by a vector for each of their tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import EmbeddingKind, Similarity
from emberge.numerics import apply_blockwise, find_lowest_score, log_sum_products

if TYPE_CHECKING:
    from torch import Tensor


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
        excluded: Callable[[slice], Tensor | None],
        scale: float = 1.0,
    ) -> Tensor:
        if not len(right):
            return log_sum_products(left.sum(1), right.sum(1), excluded)
        cells_a_row = left.shape[1] * right.shape[0] * right.shape[1]

        def compute_block(block: slice) -> Tensor:
            scores, is_excluded = self.table(left[block], right) * scale, excluded(block)
            if is_excluded is not None:
                scores = scores.masked_fill(is_excluded, find_lowest_score(scores))
            return scores.logsumexp(dim=1)

        return apply_blockwise(len(left), cells_a_row, compute_block)


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
