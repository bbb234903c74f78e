"""Spherical interpolation of two models or of their changes, per tensor, row or column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import Block, Measures, MergeStrategy, Stats, WeightRole

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Nuslerp(MergeStrategy):
    """Walk the great circle between two models to the share of the second one's weight (NuSLERP).

    t = α₂ / (α₁ + α₂), one half if they sum to zero. With a base it walks between the models' changes and
    adds them to the base. `granularity` says what is turned as one: the tensor, each output neuron (`row`)
    or each input (`column`); a one-dimensional tensor is one row.
    """

    granularity: Literal["tensor", "row", "column"] = "tensor"

    @property
    def arity(self) -> range:
        return range(2, 3)

    @property
    def weight_role(self) -> WeightRole:
        return "unused"  # not divided by their sum: a sum of zero is the middle

    @property
    def passes(self) -> int:
        return 0 if self.granularity == "row" else 1

    def measure(self, block: Block, stats: Stats) -> Measures:
        from emberge_standard.merging.angles import difference_gram, pair_sums

        if self._by_column(block):
            first, second = self._vectors(block).flatten(2)
            return {"sums": pair_sums(first, second, 0)}
        gram = difference_gram(block, self._vectors(block))
        return {"sums": gram[[0, 0, 1], [0, 1, 1]]}

    def conclude(self, block: Block, stats: Stats) -> Measures:
        from emberge_standard.merging.angles import slerp_coefficients

        return {"coefficients": slerp_coefficients(stats[-1]["sums"], self._share(block))}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        vectors = self._vectors(block)
        merged: Tensor
        if self.granularity == "row":
            merged = self._rows(vectors, block)
        elif self._by_column(block):
            first, second = (
                c.to(vectors.dtype).reshape(vectors.shape[2:]) for c in stats[0]["coefficients"]
            )
            merged = vectors[0] * first + vectors[1] * second
        else:
            merged = block.combine([float(c) for c in stats[0]["coefficients"]], vectors)
        return merged if block.base is None else merged + block.base

    def _rows(self, vectors: Tensor, block: Block) -> Tensor:
        from emberge_standard.merging.angles import pair_sums, slerp_coefficients

        rows = vectors.shape[1] if len(block.shape) > 1 else 1
        first, second = vectors.reshape(2, rows, -1)
        coefficients = slerp_coefficients(pair_sums(first, second, 1), self._share(block))
        a, b = (c.to(vectors.dtype)[:, None] for c in coefficients)
        merged: Tensor = first * a + second * b
        return merged.reshape(vectors.shape[1:])

    def _by_column(self, block: Block) -> bool:
        return self.granularity == "column" and len(block.shape) > 1

    @staticmethod
    def _vectors(block: Block) -> Tensor:
        return block.tensors if block.base is None else block.deltas

    @staticmethod
    def _share(block: Block) -> float:
        first, second = block.weights.tolist()
        return 0.5 if abs(first + second) < 1e-6 else second / (first + second)
