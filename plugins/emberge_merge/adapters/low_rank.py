"""Factorisation of matrix changes into products of two thin matrices; loads no torch by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge.merging import MergePlan, TensorPlan, find_products, is_saved_whole
from emberge.tensor_names import Names

if TYPE_CHECKING:
    from emberge.tensor_files import TensorReader, TensorSpec
    from torch import Tensor

_BLOCK_ROWS = 1 << 12  # rows or columns multiplied at once
# Squares of singular values below this share of the largest are rounding of the matrix itself.
_ROUNDING_SHARE = 1e-14
Combination = Callable[[str, Mapping[str, float], float], Mapping[str, float]]
"""Function of (tensor, weights by model, depth) that returns the factor of each model's change."""


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
    rank = truncation.of(values)
    scale = values[:rank].sqrt().sqrt_()[:, None]
    side = vectors[:, :rank].T.contiguous()  # [rank, the smaller dimension]
    other = _multiply_blockwise(change if tall else change.T, side.T) / scale.T
    if tall:
        a, b = (side * scale).float(), other.float()
    else:
        a, b = other.T.contiguous().float(), (side * scale).T.contiguous().float()
    return LowRankFactors(a, b, _measure_error(change, a, b))


def factorise_product(b: Tensor, a: Tensor, truncation: Truncation) -> LowRankFactors:
    """Return the best factors of B A, whose full matrix is never formed.

    With B = Q_b R_b and Aᵀ = Q_a R_a the singular values of B A are those of the small R_b R_aᵀ.
    """
    import torch

    left, left_r = torch.linalg.qr(b.double())
    right, right_r = torch.linalg.qr(a.double().T)
    u, s, vh = torch.linalg.svd(left_r @ right_r.T)
    rank = truncation.of(s.square())
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

    def of(self, squares: Tensor) -> int:
        """Return the number of singular values to keep (at least one), given their descending squares."""
        count = int((squares > _ROUNDING_SHARE * squares[0]).sum())
        return max(1, min(count, self.rank or count))


@dataclass(frozen=True)
class LowRankProducts:
    """The tensors of a merge of adapters whose change is a sum of low-rank products.

    `base` has the tensors of the base; `combination` is None if the merge is no sum of changes.
    """

    plan: MergePlan
    base: Names
    combination: Combination | None
    truncation: Truncation

    def is_product_change(self, tensor: TensorPlan) -> bool:
        """Return whether every model either changes the matrix by products or does not change it."""
        own = self.base.specs.get(tensor.name)
        if self.combination is None or own is None or len(own.shape) != 2:
            return False
        models = zip(self.plan.request.inputs, tensor.sources, strict=True)
        return all(
            model.adapter is not None and spec is not None and find_products(spec, own) is not None
            for model, spec in models
        )

    def is_saved_whole(self, tensor: TensorPlan) -> bool:
        """Return whether any adapter stores the whole tensor, which the merged adapter must then do, too."""
        models = zip(self.plan.request.inputs, tensor.sources, strict=True)
        return any(
            model.adapter is not None and spec is not None and is_saved_whole(spec, model.adapter)
            for model, spec in models
        )

    def compute_factors(self, tensor: TensorPlan, reader: TensorReader) -> LowRankFactors | None:
        """Return the factors of the stored matrix's change; None if no model changes it."""
        import torch

        assert self.combination is not None
        own, depth = self.base.specs[tensor.name], self.plan.depths.get(tensor.name, 0.0)
        shares = self.combination(tensor.name, self.plan.map_weights(tensor), depth)
        left: list[Tensor] = []
        right: list[Tensor] = []
        for model, spec in zip(self.plan.request.inputs, tensor.sources, strict=True):
            assert spec is not None
            for product in find_products(spec, own) or ():
                a, b = (_read_matrix(one, reader) for one in (product.a, product.b))
                b, a = (a.T, b.T) if product.transposed else (b, a)
                left.append(b * (product.scale * shares[model.name]))
                right.append(a)
        if not left:
            return None
        whole_b, whole_a = torch.cat(left, dim=1), torch.cat(right)
        if self.truncation.rank is None:
            return LowRankFactors(whole_a.float(), whole_b.float(), 0.0)
        return factorise_product(whole_b, whole_a, self.truncation)


def _read_matrix(spec: TensorSpec, reader: TensorReader) -> Tensor:
    import torch

    matrix = torch.empty(spec.shape, dtype=torch.float64)
    reader.read(spec, 0, matrix.view(-1))
    return matrix
