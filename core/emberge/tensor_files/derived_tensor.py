"""Derived tensors, which are computed from stored ones, row by row, while they are read."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from emberge.contracts import as_row_shape
from emberge.tensor_files.safetensors_header import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor


class RowReader(Protocol):
    """The part of a `TensorReader` that derived tensors use."""

    def read(self, spec: TensorSpec, start: int, into: Tensor) -> None:
        """Fill the flat, contiguous `into` with elements from `start` on, converted to its dtype."""

    def compute_once(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """Return the result of `compute`, computed once for all threads."""


@dataclass(frozen=True, slots=True)
class DerivedTensor(TensorSpec):
    """A tensor that is computed while it is read; `dtype` is the dtype in which it is stored by default.

    `TensorReader` accepts derived tensors in place of tensors of files.
    """

    @property
    def row_width(self) -> int:
        """Elements of a row, which are computed together: by default a row of the first dimension."""
        return as_row_shape(self.shape)[1]

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        """Fill `into`, float32 or float64 [rows, elements a row], with these rows.

        The bytes of a row must not depend on the other requested rows.
        """
        raise NotImplementedError


def read_derived(spec: DerivedTensor, reader: RowReader, start: int, into: Tensor) -> None:
    """Fill the flat, contiguous `into` with elements from `start` on, converted to its dtype."""
    import torch

    if not into.numel():
        return
    width = spec.row_width
    first, skip = divmod(start, width)
    rows = range(first, -(-(start + into.numel()) // width))
    has_dtype = into.dtype in (torch.float32, torch.float64)
    if has_dtype and len(rows) * width == into.numel():
        spec.compute(reader, rows, into.view(len(rows), width))
        return
    whole = torch.empty(len(rows), width, dtype=into.dtype if has_dtype else torch.float32)
    spec.compute(reader, rows, whole)
    into.copy_(whole.view(-1)[skip : skip + into.numel()])


def read_derived_bytes(
    spec: DerivedTensor, reader: RowReader, start: int, into: memoryview
) -> None:
    """Fill `into` with the tensor's bytes from byte `start` on, as a file would store them."""
    import torch

    first, skip = divmod(start, spec.itemsize)
    elements = -(-(start + len(into)) // spec.itemsize) - first
    part = torch.empty(elements, dtype=getattr(torch, spec.dtype))
    read_derived(spec, reader, first, part)
    raw: Any = part.view(torch.uint8).numpy()
    into[:] = memoryview(raw)[skip : skip + len(into)]
