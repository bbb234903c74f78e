"""Products of the members' embeddings, from which the cosine under any weighting follows.

The ensemble of members with weights w embeds a text as Σ w_i e_i(text). So q · d = Σ w_i w_j q_i · d_j, and
lengths likewise: once the products of members are known, a weighting costs one short dot product a pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge_weights.inputs.members import SideVectors, VectorRows

Places = NDArray[np.int64]
# Numbers of gathered embeddings in memory at once.
GATHERED = 16 << 20
_TINY = 1e-20


@dataclass(frozen=True, eq=False)
class PairProducts:
    """Products of all pairs of members for queries and some documents of each.

    `dots` is [terms, queries, documents of each], `queries` and `documents` are squared lengths in the same
    terms, [terms, queries] and [terms, queries, documents of each].
    """

    dots: Tensor
    queries: Tensor
    documents: Tensor

    def cosines(self, terms: Tensor) -> Tensor:
        """Return cosines [weightings, queries, documents of each], given weightings as `quadratic` terms."""
        flat = self.dots.flatten(1)
        found = (terms @ flat).view(len(terms), *self.dots.shape[1:])
        lengths = (terms @ self.documents.flatten(1)).view_as(found)
        found.mul_(lengths.clamp_min_(_TINY).rsqrt_())
        return found.mul_((terms @ self.queries).clamp_min_(_TINY).rsqrt_()[..., None])


def quadratic(weights: NDArray[np.float64]) -> Tensor:
    """Return the products w_i w_j with i ≤ j of weightings [n, members], float32 [n, terms]."""
    first, second = np.triu_indices(weights.shape[1])
    return torch.from_numpy((weights[:, first] * weights[:, second]).astype(np.float32))


def stacked(vectors: Sequence[VectorRows], places: Places | slice) -> Tensor:
    """Return the embeddings of some texts by all members, float32 [texts, members, d]."""
    return torch.from_numpy(np.stack([one[places] for one in vectors], axis=1))


def products_of(
    members: Sequence[SideVectors], documents: NDArray[np.int64]
) -> Iterator[tuple[slice, PairProducts]]:
    """Yield products of some queries after others with the documents of each, [queries, of each]."""
    dimension = members[0].queries[0:1].shape[1]
    step = max(1, GATHERED // (documents.shape[1] * len(members) * dimension))
    for start in range(0, len(documents), step):
        part = slice(start, min(start + step, len(documents)))
        left = stacked([one.queries for one in members], part)
        places, back = np.unique(documents[part], return_inverse=True)
        right = stacked([one.documents for one in members], places)
        lengths = _folded(right @ right.mT)
        place_of = torch.from_numpy(back.reshape(documents[part].shape))
        pairs = right[place_of]  # [queries, of each, members, d]
        dots = torch.einsum("qmd,qpnd->qpmn", left, pairs)
        yield (
            part,
            PairProducts(_folded(dots), _folded(left @ left.mT), lengths[:, place_of]),
        )


def _folded(products: Tensor) -> Tensor:
    """Return products [..., members, members] as terms [terms, ...]: i with j and j with i added up."""
    first, second = np.triu_indices(products.shape[-1])
    both = products[..., first, second] + products[..., second, first]
    both[..., torch.from_numpy(first == second)] /= 2
    return both.movedim(-1, 0).contiguous()
