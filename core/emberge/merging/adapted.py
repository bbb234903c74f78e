"""A base's tensor with what an adapter changes of it, made row by row while it is read; loads no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from emberge.contracts.block import rows_of
from emberge.merging.headers import TensorSpec
from emberge.merging.made import MadeSpec

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.merging.reader import TensorReader

__all__ = ["AdaptedSpec", "Change", "LowRank", "Magnitude", "NewRows", "Shift"]

# Rows made at once, counted from the tensor's first: products of matrices of another height may differ in
# their last bits, and which rows are asked for together is the machine's business.
TILE = 32


class Change(Protocol):
    """One thing that an adapter does to a tensor."""

    def apply(self, reader: TensorReader, spec: AdaptedSpec, rows: range, tile: Tensor) -> None:
        """Change `tile`, float64 [rows, elements a row] of what the changes before have left, in place."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedSpec(MadeSpec):
    """A tensor of an adapted model: the base's, or the adapter's own copy, and the changes in their order.

    All is computed in float64 and rounded once.
    """

    origin: TensorSpec
    changes: tuple[Change, ...]

    def make(self, reader: TensorReader, rows: range, into: Tensor) -> None:
        import torch

        count, width = rows_of(self.shape)
        for place in range(rows.start - rows.start % TILE, rows.stop, TILE):
            whole = range(place, min(place + TILE, count))
            tile = torch.empty(len(whole), width, dtype=torch.float64)
            reader.read(self.origin, whole.start * width, tile.view(-1))
            for change in self.changes:
                change.apply(reader, self, whole, tile)
            wanted = range(max(place, rows.start), min(whole.stop, rows.stop))
            part = tile[wanted.start - place : wanted.stop - place]
            into[wanted.start - rows.start : wanted.stop - rows.start] = part


@dataclass(frozen=True, slots=True)
class LowRank:
    """Add scale · B A (LoRA: Hu et al., 2021, arXiv:2106.09685).

    `a` is [r, in], `b` [out, r]. A `transposed` layer stores [in, out], as embeddings and Conv1D do; its rows
    take columns of `a`. Kernels of a convolution are further columns.
    """

    a: TensorSpec
    b: TensorSpec
    scale: float
    transposed: bool = False

    @property
    def rank(self) -> int:
        """The inner dimension."""
        return self.a.shape[0]

    def apply(self, reader: TensorReader, spec: AdaptedSpec, rows: range, tile: Tensor) -> None:
        left, right = self._factors(reader, rows, tile)
        tile.addmm_(left, right, alpha=self.scale)

    def _factors(self, reader: TensorReader, rows: range, like: Tensor) -> tuple[Tensor, Tensor]:
        rank = self.rank
        if not self.transposed:
            left, right = like.new_empty(len(rows), rank), like.new_empty(rank, like.shape[1])
            reader.read(self.b, rows.start * rank, left.view(-1))
            reader.read(self.a, 0, right.view(-1))
            return left, right
        columns, right = like.new_empty(rank, len(rows)), like.new_empty(like.shape[1], rank)
        for number, row in enumerate(columns):
            reader.read(self.a, number * self.a.shape[1] + rows.start, row)
        reader.read(self.b, 0, right.view(-1))
        return columns.T, right.T


@dataclass(frozen=True, slots=True)
class Magnitude:
    """Give each output the length that was learned (DoRA: Liu et al., 2024, arXiv:2402.09353).

    W = m ∘ V / ‖V‖, with V what the changes before have left. The norm is over each row, or over each column
    of a `transposed` layer, for which all rows are read once beforehand. What has no length stays zero.
    """

    m: TensorSpec
    transposed: bool = False

    def apply(self, reader: TensorReader, spec: AdaptedSpec, rows: range, tile: Tensor) -> None:
        if self.transposed:
            norms = reader.remember((spec.name, self), lambda: self._columns(reader, spec))
            learned = norms.new_empty(1, tile.shape[1])
            reader.read(self.m, 0, learned.view(-1))
        else:
            norms = tile.norm(dim=1, keepdim=True)
            learned = norms.new_empty(len(rows), 1)
            reader.read(self.m, rows.start, learned.view(-1))
        tile.mul_((learned / norms).where(norms > 0, 0.0))

    def _columns(self, reader: TensorReader, spec: AdaptedSpec) -> Tensor:
        """[1, elements a row]: the norm of each column before this change."""
        import torch

        before = spec.changes[: spec.changes.index(self)]
        count, width = rows_of(spec.shape)
        squares = torch.zeros(1, width, dtype=torch.float64)
        for rows in _tiles(count):
            tile = squares.new_empty(len(rows), width)
            reader.read(spec.origin, rows.start * width, tile.view(-1))
            for change in before:
                change.apply(reader, spec, rows, tile)
            squares += tile.square_().sum(dim=0, keepdim=True)
        return squares.sqrt_()


@dataclass(frozen=True, slots=True)
class NewRows:
    """Put other rows, [indices, elements a row], in the place of some: tokens that were trained."""

    indices: tuple[int, ...]
    values: TensorSpec

    def apply(self, reader: TensorReader, spec: AdaptedSpec, rows: range, tile: Tensor) -> None:
        for place, index in enumerate(self.indices):
            if index in rows:
                reader.read(self.values, place * tile.shape[1], tile[index - rows.start])


@dataclass(frozen=True, slots=True)
class Shift:
    """Add scale · b: the bias that LoRA's second factor may have."""

    b: TensorSpec
    scale: float

    def apply(self, reader: TensorReader, spec: AdaptedSpec, rows: range, tile: Tensor) -> None:
        added = tile.new_empty(tile.numel())
        reader.read(self.b, 0, added)
        tile.add_(added.view_as(tile), alpha=self.scale)


def _tiles(count: int) -> Iterator[range]:
    for start in range(0, count, TILE):
        yield range(start, min(start + TILE, count))
