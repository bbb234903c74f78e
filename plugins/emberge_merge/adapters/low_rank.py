"""Factorisation of matrix changes into products of two thin matrices; loads no torch by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK_ROWS = 1 << 12  # rows or columns multiplied at once
# Squares of singular values below this share of the largest are rounding of the matrix itself.
_ROUNDING_SHARE = 1e-14
Combination = Callable[[str, Mapping[str, float], float], Mapping[str, float]]
"""Function of (stored name, weights by model, depth) that returns the factor of each model's change."""


@dataclass(frozen=True, slots=True)
class LowRankFactors:
    """`b` [out, r] times `a` [r, in], both float32, and the relative Frobenius error of their product."""

    a: Tensor
    b: Tensor
    error: float

    @property
    def rank(self) -> int:
        """The inner dimension r."""
        return int(self.a.shape[0])


def factorise(change: Tensor, truncation: Truncation) -> LowRankFactors:
    """Return the best factors of a matrix [out, in] by its largest singular values: B = U√S, A = √S Vᵀ.

    The factors come from the eigenvectors of the smaller of M Mᵀ and Mᵀ M in float64, which is exact to the
    last bits of a float32 matrix and needs a fraction of the time and memory of a full decomposition. The
    error is that of the returned float32 factors.
    """
    import torch

    tall = change.shape[0] >= change.shape[1]
    gram = _compute_gram(change if tall else change.T)
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0).clamp_(min=0.0), vectors.flip(1)
    rank = truncation.choose_rank(values)
    scale = values[:rank].sqrt().sqrt_()[:, None]
    small = vectors[:, :rank].T.contiguous()  # [rank, the smaller dimension]
    large = _multiply_blockwise(change if tall else change.T, small.T) / scale.T
    if tall:
        a, b = (small * scale).float(), large.float()
    else:
        a, b = large.T.contiguous().float(), (small * scale).T.contiguous().float()
    return LowRankFactors(a, b, _measure_error(change, a, b))


def factorise_product(b: Tensor, a: Tensor, truncation: Truncation) -> LowRankFactors:
    """Return the best factors of B A, whose full matrix is never formed.

    With B = Q_b R_b and Aᵀ = Q_a R_a the singular values of B A are those of the small R_b R_aᵀ.
    """
    import torch

    left, left_r = torch.linalg.qr(b.double())
    right, right_r = torch.linalg.qr(a.double().T)
    u, s, vh = torch.linalg.svd(left_r @ right_r.T)
    rank = truncation.choose_rank(s.square())
    scale = s[:rank].sqrt()
    b, a = (left @ u[:, :rank] * scale).float(), (scale[:, None] * (vh[:rank] @ right.T)).float()
    relative_error = float(s[rank:].norm() / s.norm()) if s.any() else 0.0
    return LowRankFactors(a.contiguous(), b.contiguous(), relative_error)


def _compute_gram(tall: Tensor) -> Tensor:
    """Compute Mᵀ M in float64, a block of rows at a time."""
    import torch

    total = torch.zeros(tall.shape[1], tall.shape[1], dtype=torch.float64)
    for start in range(0, tall.shape[0], _BLOCK_ROWS):
        block = tall[start : start + _BLOCK_ROWS].double()
        total.addmm_(block.T, block)
    return total


def _multiply_blockwise(left: Tensor, right: Tensor) -> Tensor:
    import torch

    blocks = (left[start : start + _BLOCK_ROWS] for start in range(0, left.shape[0], _BLOCK_ROWS))
    return torch.cat([block.double() @ right for block in blocks])


def _measure_error(change: Tensor, a: Tensor, b: Tensor) -> float:
    wide, squared_error, whole = a.double(), 0.0, 0.0
    for start in range(0, change.shape[0], _BLOCK_ROWS):
        block, factor = (
            change[start : start + _BLOCK_ROWS].double(),
            b[start : start + _BLOCK_ROWS].double(),
        )
        whole += float(block.square().sum())
        squared_error += float((block - factor @ wide).square_().sum())
    return (squared_error / whole) ** 0.5 if whole else 0.0


@dataclass(frozen=True, slots=True)
class Truncation:
    """A limit: at most `rank` singular values; without a rank nothing is cut."""

    rank: int | None = None

    def choose_rank(self, squares: Tensor) -> int:
        """Return the number of singular values to keep (at least one), given their descending squares."""
        count = int((squares > _ROUNDING_SHARE * squares[0]).sum())
        return max(1, min(count, self.rank or count))
