"""Rows of several models in their files' dtypes, decoded when needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from emberge.numerics.buffers import pooled_like

DTYPES = ("bfloat16", "float16", "float32")
"""The types that are decoded, in the order of the kernels' numbers."""
ALIGNED = 64
"""Rows begin at multiples of this number of bytes."""
TOO_LARGE = 2.0**64
"""The least number whose square is infinite in float32: no layer can work with such a weight."""

# Words without their signs, by their type, and each dtype's word of TOO_LARGE; float16 reaches only infinity.
_MAGNITUDES = {np.int16: np.int16(0x7FFF), np.int32: np.int32(0x7FFFFFFF)}
_TOO_LARGE = {"bfloat16": 0x5F80, "float16": 0x7C00, "float32": 0x5F800000}
_LIKE = torch.empty(0)
_NO_HALVES, _NO_SINGLES = np.empty(0, np.uint16), np.empty(0, np.float32)


class Place(NamedTuple):
    """The location of one model's rows in memory: dtype and first byte."""

    dtype: str
    start: int


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """Rows of every model and the base in one piece of memory; `shape` is that of one model's rows.

    `kernels` is the module of compiled kernels.
    """

    memory: Tensor
    models: Sequence[Place]
    base: Place | None
    shape: tuple[int, ...]
    kernels: Any

    @property
    def count(self) -> int:
        """The number of models."""
        return len(self.models)

    @property
    def size(self) -> int:
        """The number of elements of one model's rows."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation."""
        return torch.float32

    @property
    def has_base(self) -> bool:
        """True if the base's rows are known."""
        return self.base is not None

    def pick(self, index: Sequence[int]) -> StoredRows:
        """Return the rows of some of the models."""
        return replace(self, models=[self.models[i] for i in index])

    def decode(self) -> Tensor:
        """Return the models' rows in float32, [models, *rows]."""
        out = pooled_like(_LIKE, (len(self.models), *self.shape))
        for place, into in zip(self.models, out, strict=True):
            into.view(-1).copy_(self._view_flat(place))
        return out

    def decode_base(self) -> Tensor | None:
        """Return the base's rows in float32."""
        if self.base is None:
            return None
        out = pooled_like(_LIKE, self.shape)
        out.view(-1).copy_(self._view_flat(self.base))
        return out

    def take_every(self, stride: int, first: int) -> tuple[Tensor, Tensor | None]:
        """Return every `stride`-th element from `first` on: of the models [models, some], and of the base."""
        models = torch.stack(
            [self._view_flat(place)[first::stride].float() for place in self.models]
        )
        base = None if self.base is None else self._view_flat(self.base)[first::stride].float()
        return models, base

    def first_unusable(self) -> int | None:
        """Return the index of the first model (the base is last) with NaN or too large values; else None."""
        if not self.size:
            return None
        memory: np.ndarray = self.memory.numpy()
        for number, tensor in enumerate([*self.models, *([self.base] if self.base else [])]):
            word = np.int32 if tensor.dtype == "float32" else np.int16
            end = tensor.start + self.size * np.dtype(word).itemsize
            largest_pattern = self.kernels.largest(
                memory[tensor.start : end].view(word), _MAGNITUDES[word]
            )
            if largest_pattern >= _TOO_LARGE[tensor.dtype]:
                return number
        return None

    def kernel_rows(self, deltas: Tensor | None, *, subtract: bool) -> tuple[Any, ...]:
        """Return the kernels' arguments for `deltas`, or for the rows (minus the base if `subtract`)."""
        memory: np.ndarray = self.memory.numpy()
        halves, singles = memory.view(np.uint16), memory.view(np.float32)
        kind, at = _locate_words(self.base) if self.base is not None else (0, 0)
        base = (halves, singles, kind, at)
        if deltas is not None:
            count, flat = len(deltas), deltas.reshape(-1).numpy()
            kinds, starts = np.full(count, 2), np.arange(count) * self.size
            return _NO_HALVES, flat, kinds, starts, *base, 2 if self.base is not None else 0
        coded_places = np.array([_locate_words(place) for place in self.models])
        return (
            halves,
            singles,
            coded_places[:, 0].copy(),
            coded_places[:, 1].copy(),
            *base,
            int(subtract),
        )

    def _view_flat(self, place: Place) -> Tensor:
        dtype = getattr(torch, place.dtype)
        size = self.size * dtype.itemsize
        return self.memory[place.start : place.start + size].view(dtype)


def words_are_usable(values: Tensor, kernels: Any) -> bool:
    """Return whether flat bfloat16, float16 or float32 numbers on a CPU are neither NaN nor TOO_LARGE."""
    if not values.numel():
        return True
    words = values.view(torch.int16 if values.dtype.itemsize == 2 else torch.int32).numpy()
    largest_pattern = kernels.largest(words, _MAGNITUDES[words.dtype.type])
    return int(largest_pattern) < _TOO_LARGE[str(values.dtype).removeprefix("torch.")]


def encode(values: Tensor, dtype: torch.dtype, *, kernels: Any = None) -> Tensor:
    """Return the values in the form to store: of `dtype`, contiguous, on the CPU."""
    use_torch = kernels is None or dtype != torch.bfloat16 or values.dtype != torch.float32
    if use_torch or values.device.type != "cpu":
        return values.to(dtype=dtype).cpu().contiguous()
    out = pooled_like(torch.empty(0, dtype=dtype), values.shape)
    kernels.encode(
        values.reshape(-1).numpy(), out.view(-1).view(torch.int16).numpy().view(np.uint16)
    )
    return out


def _locate_words(place: Place) -> tuple[int, int]:
    return DTYPES.index(place.dtype), place.start // (4 if place.dtype == "float32" else 2)
