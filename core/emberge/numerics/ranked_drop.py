"""Drops whose chance follows the rank of a value's magnitude in its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emberge.numerics.buffers import pooled_like
from emberge.numerics.noise import odd_numbers

# Values whose places are mixed together, for all models: they stay in the second cache.
_TOGETHER = 1 << 16

Line = tuple[float, float]
"""The chance of the least magnitude of a row, and what each further rank adds to it."""


def chances_of(deltas: Tensor, lines: Sequence[Line], width: int) -> Tensor:
    """Return the chance that each delta stays, shaped like `deltas` [models, *rows]."""
    kept = pooled_like(deltas)
    for delta, into, line in zip(deltas, kept, lines, strict=True):
        values = _line(line, width, deltas)
        into.copy_(by_rank(delta.abs().reshape(-1, width), values).reshape(delta.shape))
    return kept


def by_rank(magnitudes: Tensor, values: Tensor) -> Tensor:
    """Return the entry of rising `values` [size] for each magnitude's rank in its row, [rows, size].

    The least magnitude has the first value; equal ones are ranked in their order.
    """
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


def drop_ranked(
    deltas: Tensor,
    lines: Sequence[Line],
    width: int,
    start: int,
    keys: Sequence[tuple[object, ...]],
    kernels: Any,
) -> None:
    """Zero float32 deltas [models, *rows] in place by compiled kernels, rows of `width` at a time.

    No value's place may be beyond the span of the hash.
    """
    flat = deltas.view(len(deltas), -1, width).numpy()
    step = max(1, _TOGETHER // width)
    places = np.empty(step * width, np.uint32)
    chances = [_line(line, width, deltas).numpy() for line in lines]
    multipliers = [odd_numbers((*key, 0)) for key in keys]
    for first in range(0, flat.shape[1], step):
        kernels.mix(start + first * width, places)
        for rows, chance, numbers in zip(flat, chances, multipliers, strict=True):
            kernels.drop_ranked(rows[first : first + step], chance, places, *numbers)


def _line(line: Line, width: int, like: Tensor) -> Tensor:
    lowest, step = line
    ranks = torch.arange(width, dtype=like.dtype, device=like.device)
    return ranks.mul_(step).add_(lowest)
