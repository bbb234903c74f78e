"""What spherical means and Model Stock share: a Gram matrix, coefficients from it, one combination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from emberge import Block, Measures, MergeStrategy, Scope, Stats

if TYPE_CHECKING:
    from torch import Tensor

Granularity = Literal["tensor", "row", "column", "layer", "model"]


@dataclass(frozen=True, kw_only=True)
class GramStrategy(MergeStrategy):
    """A strategy whose result is a combination of vectors, with coefficients that inner products tell.

    Subclasses say which vectors and how inner products become coefficients.
    """

    granularity: Granularity = "tensor"
    """What is one vector: a tensor, an output neuron (`row`), an input (`column`), a layer, the model.

    A tensor of one dimension is one row, and one column.
    """

    @property
    def scope(self) -> Scope:
        if self.granularity in ("layer", "model"):
            return cast(Scope, self.granularity)
        return "tensor"

    @property
    def passes(self) -> int:
        return 0 if self.granularity == "row" else 1  # rows are never split

    def vectors(self, block: Block) -> Tensor:
        """What is combined, [models, *rows]; default: the models themselves."""
        return block.tensors

    def measured(self, vectors: Tensor) -> Tensor:
        """What the Gram matrix is of, given [models, …]; default: the first vector and differences to it.

        Models that were tuned from one base are nearly parallel, and products of the vectors
        themselves would lose the angle between them.
        """
        differences = vectors - vectors[:1]
        differences[0] = vectors[0]
        return differences

    def coefficients(self, gram: Tensor, block: Block) -> tuple[Tensor, str]:
        """Float64 coefficients [..., models] for Gram matrices [..., models, models], and a warning or ""."""
        raise NotImplementedError

    def finish(self, merged: Tensor, block: Block) -> Tensor:
        """The merged rows, given the combination; default: it is them."""
        return merged

    def measure(self, block: Block, stats: Stats) -> Measures:
        vectors = self.vectors(block)
        if self._by_column(block):
            return {"gram": _grams(self.measured(vectors.flatten(2).double()).transpose(1, 2))}
        return {"gram": block.gram(self.measured(vectors))}

    def conclude(self, block: Block, stats: Stats) -> Measures:
        coefficients, warning = self.coefficients(stats[-1]["gram"], block)
        return {"coefficients": coefficients, "warning": warning}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        vectors = self.vectors(block)
        if self.granularity == "row":
            merged = self._rows(vectors, block)
        elif self._by_column(block):
            merged = _mixed(vectors.flatten(2), stats[0]["coefficients"][None]).reshape(
                vectors.shape[1:]
            )
        else:
            merged = block.combine(stats[0]["coefficients"], vectors)
        return self.finish(merged, block)

    def _rows(self, vectors: Tensor, block: Block) -> Tensor:
        count = vectors.shape[1] if len(block.shape) > 1 else 1
        rows = vectors.reshape(len(vectors), count, -1)
        coefficients, _ = self.coefficients(_grams(self.measured(rows.double())), block)
        return _mixed(rows, coefficients[:, None]).reshape(vectors.shape[1:])

    def _by_column(self, block: Block) -> bool:
        return self.granularity == "column" and len(block.shape) > 1


def _grams(vectors: Tensor) -> Tensor:
    """Gram matrices [many, n, n] of float64 [n, many, length]."""
    count = len(vectors)
    grams = vectors.new_empty((vectors.shape[1], count, count))
    for i in range(count):
        for j in range(i + 1):
            # One sum a row, so that its bits are its own; a matrix product's depend on how many there are.
            product = (vectors[i] * vectors[j]).sum(-1)
            grams[:, i, j] = grams[:, j, i] = product
    return grams


def _mixed(vectors: Tensor, coefficients: Tensor) -> Tensor:
    """Sum of vectors [n, rows, columns] times coefficients [rows or 1, columns or 1, n]."""
    factors = coefficients.to(vectors.dtype).unbind(-1)
    out = vectors[0] * factors[0]
    for vector, factor in zip(vectors[1:], factors[1:], strict=True):
        out.add_(
            vector * factor
        )  # two roundings everywhere: a fused step would show where blocks end
    return out
