"""Derived tensors, computed while they are read: random and joined ones; parts of stored ones."""

from __future__ import annotations

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


def _draw_normal(size: int, seed: int) -> Tensor:
    """Return standard normal numbers, float64 [size]: the distribution's quantiles at 53 random bits each."""
    import torch

    bits = (draw_bits(size, seed) >> 11).astype("float64")
    quantiles: Tensor = torch.special.ndtri(torch.from_numpy((bits + 0.5) * 2.0**-53))
    return quantiles
