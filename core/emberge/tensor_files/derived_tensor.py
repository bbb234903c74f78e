"""Tensors that stand in no file as such and are made from others, row by row, while they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge.contracts.block import rows_of
from emberge.tensor_files.safetensors_header import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.tensor_files.tensor_reader import TensorReader

__all__ = ["DerivedTensor", "read_made", "read_made_bytes"]


@dataclass(frozen=True, slots=True)
class DerivedTensor(TensorSpec):
    """A tensor that is made while it is read; `dtype` is the one that it is stored in unless asked otherwise.

    Wherever a tensor of a file may stand such a one may too: `TensorReader` sees to it.
    """

    def make(self, reader: TensorReader, rows: range, into: Tensor) -> None:
        """Fill `into`, float32 or float64 [rows, elements a row], with these rows.

        The same row has the same bytes whichever rows are asked for with it.
        """
        raise NotImplementedError


def read_made(spec: DerivedTensor, reader: TensorReader, start: int, into: Tensor) -> None:
    """Fill the flat, contiguous `into` with elements from `start` on, converted to its dtype."""
    import torch

    if not into.numel():
        return
    width = rows_of(spec.shape)[1]
    first, skip = divmod(start, width)
    rows = range(first, -(-(start + into.numel()) // width))
    computed = into.dtype in (torch.float32, torch.float64)
    if computed and len(rows) * width == into.numel():
        spec.make(reader, rows, into.view(len(rows), width))
        return
    made = torch.empty(len(rows), width, dtype=into.dtype if computed else torch.float32)
    spec.make(reader, rows, made)
    into.copy_(made.view(-1)[skip : skip + into.numel()])


def read_made_bytes(
    spec: DerivedTensor, reader: TensorReader, start: int, into: memoryview
) -> None:
    """Fill `into` with the bytes from `start` on that the tensor would have in a file, in its dtype."""
    import torch

    first, skip = divmod(start, spec.itemsize)
    elements = -(-(start + len(into)) // spec.itemsize) - first
    made = torch.empty(elements, dtype=getattr(torch, spec.dtype))
    read_made(spec, reader, first, made)
    raw: Any = made.view(torch.uint8).numpy()
    into[:] = memoryview(raw)[skip : skip + len(into)]
