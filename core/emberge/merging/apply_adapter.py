"""Base tensors with an adapter's changes applied row by row while they are read; loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from emberge.contracts import as_row_shape
from emberge.tensor_files import DerivedTensor, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.tensor_files import RowReader

# Rows made at once, counted from the tensor's first: products of matrices of another height may differ in
# their last bits, and which rows are asked for together is the machine's business.
TILE_ROWS = 32


ApplyToTile = Callable[[range, "Tensor"], object]
"""Function that changes a tile, float64 [rows, elements a row], in place, after earlier changes."""


class Change(Protocol):
    """A change that an adapter makes to a tensor."""

    def prepare(self, reader: RowReader, spec: AdaptedSpec, rows: range) -> ApplyToTile:
        """Return a function that applies the change to tiles of these rows, after reading what it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedSpec(DerivedTensor):
    """A tensor of an adapted model: the base's or the adapter's copy, and the changes to apply in order.

    Changes are computed in float64 and the result is rounded once.
    """

    origin: TensorSpec
    changes: tuple[Change, ...]

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        for whole, tile in _compute_tiles(reader, self, rows, self.changes):
            common_rows = range(max(whole.start, rows.start), min(whole.stop, rows.stop))
            part = tile[common_rows.start - whole.start : common_rows.stop - whole.start]
            into[common_rows.start - rows.start : common_rows.stop - rows.start] = part


@dataclass(frozen=True, slots=True)
class LowRank:
    """The addition of scale · B A (LoRA: Hu et al., 2021, arXiv:2106.09685).

    `a` is [r, in], `b` [out, r]. A `transposed` layer stores [in, out], as embeddings and Conv1D do, so its
    rows are computed from columns of `a`. A convolution's kernel elements count as further columns.
    """

    a: TensorSpec
    b: TensorSpec
    scale: float
    transposed: bool = False

    @property
    def rank(self) -> int:
        """The inner dimension."""
        return self.a.shape[0]

    def prepare(self, reader: RowReader, spec: AdaptedSpec, rows: range) -> ApplyToTile:
        right = _read_tensor(reader, self.b if self.transposed else self.a)
        right = right.view(-1, self.rank).T if self.transposed else right.view(self.rank, -1)
        left = self._read_left_factor(reader, rows)

        def change(tile_rows: range, tile: Tensor) -> None:
            left_rows = left[
                tile_rows.start - rows.start : tile_rows.stop - rows.start
            ].contiguous()
            tile.addmm_(left_rows, right, alpha=self.scale)

        return change

    def _read_left_factor(self, reader: RowReader, rows: range) -> Tensor:
        """Return the rows' part of the left factor, [rows, r]."""
        import torch

        if not self.transposed:
            left = torch.empty(len(rows), self.rank, dtype=torch.float64)
            reader.read(self.b, rows.start * self.rank, left.view(-1))
            return left
        columns = torch.empty(self.rank, len(rows), dtype=torch.float64)
        for number, row in enumerate(columns):
            reader.read(self.a, number * self.a.shape[1] + rows.start, row)
        return columns.T


@dataclass(frozen=True, slots=True)
class MagnitudeScale:
    """The scaling of each output to a learned length (DoRA: Liu et al., 2024, arXiv:2402.09353).

    W = m ∘ V / ‖V‖, where V is the result of the preceding changes. The norm is over each row, or over each
    column of a `transposed` layer, for which all rows are read once beforehand. Rows or columns of norm zero
    stay zero.
    """

    m: TensorSpec
    transposed: bool = False

    def prepare(self, reader: RowReader, spec: AdaptedSpec, rows: range) -> ApplyToTile:
        learned_lengths = _read_tensor(reader, self.m)
        if not self.transposed:

            def by_row(tile_rows: range, tile: Tensor) -> None:
                norms = tile.norm(dim=1, keepdim=True)
                target_norms = learned_lengths[tile_rows.start : tile_rows.stop, None]
                tile.mul_((target_norms / norms).where(norms > 0, 0.0))

            return by_row
        norms = reader.compute_once((spec.name, self), lambda: self._measure_columns(reader, spec))
        factors = (learned_lengths / norms).where(norms > 0, 0.0)

        return lambda _, tile: tile.mul_(factors)

    def _measure_columns(self, reader: RowReader, spec: AdaptedSpec) -> Tensor:
        """Return the norm of each column before this change."""
        import torch

        count, width = as_row_shape(spec.shape)
        earlier_changes = spec.changes[: spec.changes.index(self)]
        squares = torch.zeros(width, dtype=torch.float64)
        for _, tile in _compute_tiles(reader, spec, range(count), earlier_changes):
            squares += tile.square_().sum(dim=0)
        return squares.sqrt_()


def _compute_tiles(
    reader: RowReader, spec: AdaptedSpec, rows: range, changes: Sequence[Change]
) -> Iterator[tuple[range, Tensor]]:
    """Yield the changed tiles around some rows, each as (its rows, float64 [rows, elements a row])."""
    import torch

    count, width = as_row_shape(spec.shape)
    first, last = (
        rows.start - rows.start % TILE_ROWS,
        min(-(-rows.stop // TILE_ROWS) * TILE_ROWS, count),
    )
    tile_functions = [change.prepare(reader, spec, range(first, last)) for change in changes]
    for start in range(first, last, TILE_ROWS):
        tile_rows = range(start, min(start + TILE_ROWS, count))
        tile = torch.empty(len(tile_rows), width, dtype=torch.float64)
        reader.read(spec.origin, start * width, tile.view(-1))
        for change in tile_functions:
            change(tile_rows, tile)
        yield tile_rows, tile


def _read_tensor(reader: RowReader, spec: TensorSpec) -> Tensor:
    """Read a whole small tensor, flat, in float64."""
    import torch

    values = torch.empty(spec.elements, dtype=torch.float64)
    reader.read(spec, 0, values)
    return values
