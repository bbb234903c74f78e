"""Changes of matrices as products of two thin ones, cut to a rank; loads no torch by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


_BLOCK = 1 << 12  # rows or columns multiplied at once


@dataclass(frozen=True, slots=True)
class Factors:
    """`b` [out, r] times `a` [r, in], both float32, and the relative Frobenius error of their product."""

    a: Tensor
    b: Tensor
    error: float

    @property
    def rank(self) -> int:
        """The inner dimension."""
        return int(self.a.shape[0])


def factorise(change: Tensor, truncation: Truncation) -> Factors:
    """Return the best factors of a matrix [out, in] by its largest singular values: B = U√S, A = √S Vᵀ.

    They come from the eigenvectors of the smaller of M Mᵀ and Mᵀ M in float64, which is exact to the last
    bits of a float32 matrix and needs a fraction of the time and memory of a full decomposition. The error is
    measured on the factors as they are returned.
    """
    import torch

    tall = change.shape[0] >= change.shape[1]
    gram = _gram(change if tall else change.T)
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0).clamp_(min=0.0), vectors.flip(1)
    kept = truncation.of(values)
    scale = values[:kept].sqrt().sqrt_()[:, None]
    side = vectors[:, :kept].T.contiguous()  # [kept, the smaller dimension]
    other = _times(change if tall else change.T, side.T) / scale.T
    if tall:
        a, b = (side * scale).float(), other.float()
    else:
        a, b = other.T.contiguous().float(), (side * scale).T.contiguous().float()
    return Factors(a, b, _error(change, a, b))


def factorise_product(b: Tensor, a: Tensor, truncation: Truncation) -> Factors:
    """Return the best factors of B A, whose full matrix is never formed.

    With B = Q_b R_b and Aᵀ = Q_a R_a the singular values of B A are those of the small R_b R_aᵀ.
    """
    import torch

    left, left_r = torch.linalg.qr(b.double())
    right, right_r = torch.linalg.qr(a.double().T)
    u, s, vh = torch.linalg.svd(left_r @ right_r.T)
    kept = truncation.of(s.square())
    scale = s[:kept].sqrt()
    b, a = (left @ u[:, :kept] * scale).float(), (scale[:, None] * (vh[:kept] @ right.T)).float()
    lost = float(s[kept:].norm() / s.norm()) if s.any() else 0.0
    return Factors(a.contiguous(), b.contiguous(), lost)


def _gram(tall: Tensor) -> Tensor:
    """Compute Mᵀ M in float64, a block of rows at a time."""
    import torch

    total = torch.zeros(tall.shape[1], tall.shape[1], dtype=torch.float64)
    for start in range(0, tall.shape[0], _BLOCK):
        double = tall[start : start + _BLOCK].double()
        total.addmm_(double.T, double)
    return total


def _times(left: Tensor, right: Tensor) -> Tensor:
    import torch

    blocks = (left[start : start + _BLOCK] for start in range(0, left.shape[0], _BLOCK))
    return torch.cat([block.double() @ right for block in blocks])


def _error(change: Tensor, a: Tensor, b: Tensor) -> float:
    wide, lost, whole = a.double(), 0.0, 0.0
    for start in range(0, change.shape[0], _BLOCK):
        double, made = change[start : start + _BLOCK].double(), b[start : start + _BLOCK].double()
        whole += float(double.square().sum())
        lost += float((double - made @ wide).square_().sum())
    return (lost / whole) ** 0.5 if whole else 0.0


# Squares of singular values below this share of the largest are rounding of the matrix itself.
_NOISE = 1e-14


@dataclass(frozen=True, slots=True)
class Truncation:
    """A limit: at most `rank` singular values, and no more than have `energy` of the squared norm."""

    rank: int | None = None
    energy: float | None = None

    def of(self, squares: Tensor) -> int:
        """Return the number of squared singular values, largest first, that are kept; at least one."""
        count = int((squares > _NOISE * squares[0]).sum())
        if self.energy is not None:
            reached = squares.cumsum(0) >= self.energy * squares.sum() * (1 - 1e-12)
            count = min(count, int((~reached).sum()) + 1)
        return max(1, min(count, self.rank or count))
