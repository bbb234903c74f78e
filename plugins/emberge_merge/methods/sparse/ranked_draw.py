"""Random drops whose probability depends on the rank of a value's magnitude in its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from emberge.numerics import DeltaProgram, KernelRows, hash_key, map_array, take_tensor_like

if TYPE_CHECKING:
    from emberge.numerics import KernelIntegers
    from torch import Tensor

Line = tuple[float, float]
"""Probability for a row's smallest magnitude, and its increase with each further rank."""


@dataclass(frozen=True, slots=True)
class RankedDraw:
    """Bits that decide which deltas stay, by their ranks in rows of `width`, [models, rows, bytes of a row].

    A bit is 1 for a delta that stays; a row's first delta has the lowest bit of its first byte. The bits of
    zeros are arbitrary. `keys` are those of each model's random numbers.
    """

    lines: Sequence[Line]
    width: int
    keys: Sequence[tuple[object, ...]]

    of_deltas = True

    def by_torch(self, rows: DeltaProgram) -> np.ndarray:
        chances = list_chances(rows.deltas, self.lines, self.width)
        # The numbers of unchanged rows are those of `tensors`, which are shaped like the deltas.
        stays: np.ndarray = rows.uniform(self.keys).lt(chances).cpu().numpy()
        return np.packbits(stays.reshape(len(stays), -1, self.width), axis=-1, bitorder="little")

    def by_kernels(self, rows: KernelRows) -> np.ndarray:
        bits = map_array((rows.count, rows.size // self.width, -(-self.width // 8)), np.uint8)
        chances = [_list_rank_chances(line, self.width, np.float32) for line in self.lines]
        multipliers = np.array([hash_key(key) for key in self.keys], np.uint32)
        rows.call("draw_ranked", self.width, np.stack(chances), multipliers, bits)
        return bits


@dataclass(frozen=True, slots=True, eq=False)
class KeepDrawn:
    """A change that keeps the values whose bit is 1 (`RankedDraw`), in rows of `width` elements.

    The bits are those of the changed rows alone.
    """

    bits: np.ndarray
    width: int

    kernel = "drawn"

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        mask = np.unpackbits(self.bits, axis=-1, count=self.width, bitorder="little")
        return deltas.mul_(deltas.new_tensor(mask).reshape(deltas.shape))

    def list_kernel_arguments(self) -> list[tuple[float, KernelIntegers]]:
        # Kernels read the bits by their address.
        assert self.bits.dtype == np.uint8
        assert self.bits.flags.c_contiguous
        first, row_bytes = self.bits.ctypes.data, self.bits.shape[-1]
        addresses = (first + m * self.bits.strides[0] for m in range(len(self.bits)))
        return [(0.0, (address, self.width, row_bytes)) for address in addresses]


def list_chances(deltas: Tensor, lines: Sequence[Line], width: int) -> Tensor:
    """Return each delta's keep probability, shaped like `deltas` [models, *rows]."""
    chances = take_tensor_like(deltas)
    dtype = np.float32 if deltas.dtype.itemsize == 4 else np.float64
    for delta, into, line in zip(deltas, chances, lines, strict=True):
        values = deltas.new_tensor(_list_rank_chances(line, width, dtype))
        into.copy_(_pick_by_rank(delta.abs().reshape(-1, width), values).reshape(delta.shape))
    return chances


def _list_rank_chances(line: Line, width: int, dtype: Any) -> np.ndarray:
    """Return the keep probability for each rank of a row of `width` elements."""
    lowest, step = (np.dtype(dtype).type(number) for number in line)
    ranks: np.ndarray = np.arange(width, dtype=dtype)
    ranks *= step
    ranks += lowest
    return ranks


def _pick_by_rank(magnitudes: Tensor, values: Tensor) -> Tensor:
    """Return the entry of ascending `values` [size] at each magnitude's rank in its row, [rows, size].

    The smallest magnitude gets the first value; equal magnitudes are ranked by their position.
    """
    import torch

    if magnitudes.dtype == torch.float32 and magnitudes.device.type == "cpu":
        # Pattern and place in one whole number: NumPy sorts them four times faster than torch finds an order.
        keys = magnitudes.numpy().view(np.int32).astype(np.int64)
        keys <<= 32
        keys += np.arange(magnitudes.shape[1])
        keys.sort(axis=1)
        keys &= 0xFFFFFFFF
        order = torch.from_numpy(keys)
    else:
        order = magnitudes.argsort(dim=1, stable=True)
    return torch.empty_like(magnitudes).scatter_(1, order, values.expand_as(magnitudes))
