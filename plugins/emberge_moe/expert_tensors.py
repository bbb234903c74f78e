"""Derived tensors, computed while they are read: random, joined and averaged ones; parts of stored ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import draw_bits, make_seed
from emberge.tensor_files import DerivedTensor, TensorSpec

if TYPE_CHECKING:
    from emberge.tensor_files import RowReader
    from torch import Tensor


def slice_tensor(spec: TensorSpec, name: str, shape: tuple[int, ...], start: int) -> TensorSpec:
    """Return a tensor of `shape` that reads another tensor's elements from `start` on, in the same file."""
    assert not isinstance(spec, DerivedTensor)
    return TensorSpec(name, shape, spec.dtype, spec.file, spec.offset + start * spec.itemsize)


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalTensor(DerivedTensor):
    """A tensor of normally distributed numbers; each row depends on the seed and the row's index alone."""

    deviation: float
    seed: int

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        for target, row in zip(into, rows, strict=True):
            target.copy_(_draw_normal(target.numel(), make_seed(self.seed, row)) * self.deviation)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTensor(DerivedTensor):
    """Concatenation of tensors' elements: stacked experts, or matrices joined by their rows."""

    parts: Sequence[TensorSpec]

    @property
    def row_width(self) -> int:
        # A stacked expert is no row: it may be as large as a matrix of the model.
        return self.shape[-1]

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        flat = into.view(-1)
        start, end = rows.start * into.shape[1], rows.stop * into.shape[1]
        begins = 0
        for part in self.parts:
            first, last = max(start, begins), min(end, begins + part.elements)
            if first < last:
                reader.read(part, first - begins, flat[first - start : last - start])
            begins += part.elements


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragedTensor(DerivedTensor):
    """A weighted mean of tensors, added up in float64; equal tensors give the same tensor, bit for bit."""

    parts: Sequence[TensorSpec]
    weights: Sequence[float]

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        import torch

        total = math.fsum(self.weights)
        start = rows.start * into.shape[1]
        first = torch.empty(into.numel(), dtype=torch.float64)
        reader.read(self.parts[0], start, first)
        # Differences from the first are exactly zero where all are equal, whatever the weights.
        mean, other = first.clone(), torch.empty_like(first)
        for part, weight in zip(self.parts[1:], self.weights[1:], strict=True):
            reader.read(part, start, other)
            mean.add_(other.sub_(first), alpha=weight / total)
        into.copy_(mean.view_as(into))


def _draw_normal(size: int, seed: int) -> Tensor:
    """Return standard normal numbers, float64 [size]: the distribution's quantiles at 53 random bits each."""
    import torch

    bits = (draw_bits(size, seed) >> 11).astype("float64")
    quantiles: Tensor = torch.special.ndtri(torch.from_numpy((bits + 0.5) * 2.0**-53))
    return quantiles
