"""Combinations of models by coefficients from their Gram matrix: spherical means and Model Stock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from emberge import Block, Measures, MergeStrategy, Scope, Stats, WeightedSum

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Granularity = Literal["tensor", "row", "column", "layer", "model"]


@dataclass(frozen=True, kw_only=True)
class GramStrategy(MergeStrategy):
    """Strategy whose result is a combination of vectors, with coefficients from their inner products.

    Subclasses choose the vectors, and compute the coefficients from the inner products.
    """

    granularity: Granularity = "tensor"
    """Extent of one vector: a tensor, an output neuron (`row`), an input (`column`), a layer, the model.

    A tensor of one dimension is one vector both by row and by column.
    """

    @property
    def needs_torch(self) -> bool:
        return self.granularity in ("row", "column")

    @property
    def scope(self) -> Scope:
        if self.granularity in ("layer", "model"):
            return cast(Scope, self.granularity)
        return "tensor"

    @property
    def passes(self) -> int:
        return 0 if self.granularity == "row" else 1  # rows are never split

    def of_deltas(self, block: Block) -> bool:
        """Return whether changes are combined and added to the base; by default the models are combined."""
        return False

    @property
    def near(self) -> bool:
        """True if vectors may be nearly parallel, so that differences to the first are measured too."""
        return True

    def coefficients(self, grams: Measures, block: Block) -> tuple[np.ndarray, str]:
        """Return float64 coefficients [..., models] for Gram matrices [..., models, models], and a warning.

        `grams["products"]` has the products of the vectors. `grams["differences"]`, if `near` is true, has
        the products of the first vector and of the differences of the others to it: models that were tuned
        from one base are nearly parallel, and products of the vectors alone would lose the angle between
        them.
        """
        raise NotImplementedError

    def measure(self, block: Block, stats: Stats) -> Measures:
        if self._is_by_column(block):
            return self._compute_row_grams(self._select_vectors(block).flatten(2).double(), 0)
        return block.inner_products(deltas=self.of_deltas(block), differences=self.near)

    def conclude(self, block: Block, stats: Stats) -> Measures:
        coefficients, warning = self.coefficients(stats[-1], block)
        return {"coefficients": coefficients, "warning": warning}

    def formula(self, block: Block, stats: Stats) -> WeightedSum | None:
        if self.granularity == "row" or self._is_by_column(block):
            return None
        return WeightedSum(stats[0]["coefficients"], of_deltas=self.of_deltas(block))

    def merge(self, block: Block, stats: Stats) -> Tensor:
        if self.formula(block, stats) is not None:
            return super().merge(block, stats)
        deltas = self.of_deltas(block)
        vectors = self._select_vectors(block)
        if self.granularity == "row":
            merged = self._merge_rows(vectors, block)
        else:
            combined = _combine_vectors(vectors.flatten(2), stats[0]["coefficients"][None])
            merged = combined.reshape(vectors.shape[1:])
        return block.add_delta(merged) if deltas else merged

    def _select_vectors(self, block: Block) -> Tensor:
        return block.deltas if self.of_deltas(block) else block.tensors

    def _merge_rows(self, vectors: Tensor, block: Block) -> Tensor:
        count = vectors.shape[1] if len(block.shape) > 1 else 1
        rows = vectors.reshape(len(vectors), count, -1)
        coefficients, _ = self.coefficients(self._compute_row_grams(rows.double(), 1), block)
        return _combine_vectors(rows, coefficients[:, None]).reshape(vectors.shape[1:])

    def _compute_row_grams(self, vectors: Tensor, dim: int) -> dict[str, np.ndarray]:
        grams = {"products": _multiply_grams(vectors, dim)}
        if self.near:
            grams["differences"] = _multiply_grams(_subtract_first(vectors), dim)
        return grams

    def _is_by_column(self, block: Block) -> bool:
        return self.granularity == "column" and len(block.shape) > 1


def _subtract_first(vectors: Tensor) -> Tensor:
    """Return the first vector and the differences of the others to it."""
    differences = vectors - vectors[:1]
    differences[0] = vectors[0]
    return differences


def _multiply_grams(vectors: Tensor, dim: int) -> np.ndarray:
    """Return Gram matrices [many, n, n] of [n, rows, columns], summed along rows (0) or columns (1)."""
    count = len(vectors)
    grams = vectors.new_empty((vectors.shape[2 - dim], count, count))
    for i in range(count):
        for j in range(i + 1):
            # One sum a row, so that its bits are its own; a matrix product's depend on how many there are.
            product = (vectors[i] * vectors[j]).sum(dim)
            grams[:, i, j] = grams[:, j, i] = product
    matrices: np.ndarray = grams.cpu().numpy()
    return matrices


def _combine_vectors(vectors: Tensor, coefficients: np.ndarray) -> Tensor:
    """Return the sum of vectors [n, rows, columns] times coefficients [rows or 1, columns or 1, n]."""
    import torch

    factors = torch.from_numpy(coefficients).to(vectors).unbind(-1)
    out = vectors[0] * factors[0]
    for vector, factor in zip(vectors[1:], factors[1:], strict=True):
        out.add_(
            vector * factor
        )  # two roundings everywhere: a fused step would show where blocks end
    return out
