"""Geometry of token states (spread, direction), and the drift between two spaces of embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge.numerics import nearest_rows, overlap

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Array = NDArray[np.float64]
    Embeddings = NDArray[np.floating]


EntropyOf = Literal["squares", "values"]
Tolerance = Literal["float32", "float64"]
MEASURES = ("token_similarity", "rank", "condition_number", "svd_entropy")


@dataclass(frozen=True)
class TokenGeometry:
    """Measures of token matrices X [n, d], whose rows are neither normalised nor centred.

    `tolerance` is the dtype whose epsilon bounds singular values. The rank is the number of singular values
    above max(n, d) · epsilon · σ₁; in the condition number, the smallest one counts as at least epsilon · σ₁.
    The entropy is computed from the shares of σ² (`squares`) or of σ (`values`), in nats.
    """

    entropy_of: EntropyOf = "squares"
    tolerance: Tolerance = "float32"

    @property
    def epsilon(self) -> float:
        """Machine epsilon of the dtype `tolerance`."""
        import numpy as np

        return float(np.finfo(self.tolerance).eps)

    def __call__(self, states: Tensor) -> Mapping[str, Array]:
        """Return each measure [b] of token matrices [b, n, d], NaN for fewer than two nonzero rows."""
        # On the CPU: not every device has float64.
        matrices = states.cpu().double()
        similarity = _compute_token_similarity(matrices)
        sigma = singular_values(matrices)
        largest = sigma[:, :1]
        shares = sigma**2 if self.entropy_of == "squares" else sigma
        shares = shares / shares.sum(-1, keepdim=True)
        rank = (sigma > max(matrices.shape[1:]) * self.epsilon * largest).sum(-1)
        measures = {
            "token_similarity": similarity,
            "rank": rank.double(),
            "condition_number": largest[:, 0] / sigma[:, -1].maximum(self.epsilon * largest[:, 0]),
            "svd_entropy": -shares.xlogy(shares).sum(-1),
        }
        nothing = similarity.isnan()
        return {
            name: values.masked_fill(nothing, float("nan")).numpy()
            for name, values in measures.items()
        }


def singular_values(matrices: Tensor) -> Tensor:
    """Return the singular values [b, min(n, d)] of float64 matrices [b, n, d], largest first.

    They are computed from a triangular factor, which has the same singular values and is smaller. This takes
    half the time and loses no digits; the eigenvalues of XᵀX would lose half of the digits.
    """
    import torch

    n, d = matrices.shape[1:]
    tall_matrices = matrices if n > d else matrices.mT
    sigma: Tensor = torch.linalg.svdvals(torch.linalg.qr(tall_matrices, mode="r").R)
    return sigma


def _compute_token_similarity(matrices: Tensor) -> Tensor:
    """Return the mean cosine of two different nonzero rows; NaN for fewer than two nonzero rows."""
    from emberge import unit_vectors

    rows = unit_vectors(matrices)
    self_products = (rows**2).sum((-1, -2))
    count = (rows != 0).any(-1).sum(-1)
    pairs = count * (count - 1)
    total = (rows.sum(-2) ** 2).sum(-1) - self_products
    return (total / pairs).masked_fill(pairs == 0, float("nan"))


def linear_cka(first: Embeddings, second: Embeddings) -> float:
    """Return the linear CKA of two models' embeddings [n, d] of the same texts (arXiv:1905.00414, eq. 4).

    It is 1 if the embeddings differ only by a rotation and a factor, and NaN if one model's embeddings are
    all equal.
    """
    import numpy as np

    if any((embeddings == embeddings[0]).all() for embeddings in (first, second)):
        return float("nan")
    x, y = (np.asarray(e, np.float64) for e in (first, second))
    x, y = x - x.mean(0), y - y.mean(0)
    sizes = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(x.T @ y) ** 2 / sizes)


def shared_neighbours(first: Embeddings, second: Embeddings, count: int) -> float:
    """Return the mean share of a text's `count` nearest texts by cosine that are the same in both models."""
    import numpy as np

    other_texts = np.arange(len(first))
    nearest = [
        nearest_rows(vectors, vectors, count, skipped=other_texts)
        for vectors in (np.asarray(first, np.float64), np.asarray(second, np.float64))
    ]
    return overlap(*nearest)
