"""Random numbers that belong to elements, not to a generator: a hash of what and where an element is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["uniform"]

# splitmix64 (Steele, Lea, Flood, 2014), its constants as signed 64-bit numbers.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def uniform(tensors: Tensor, start: int, keys: Sequence[tuple[Any, ...]]) -> Tensor:
    """Numbers in [0, 1) shaped and typed like `tensors` [models, *rows], with 24 random bits each.

    Model m's element i is a hash of `keys[m]` and `start + i` alone: the same for any block, order,
    worker and device. Two elements share a 64-bit word, which halves the work.

    Raises:
        ValueError: when there is not one key a model.
    """
    if len(keys) != tensors.shape[0]:
        raise ValueError(f"{len(keys)} keys for {tensors.shape[0]} models")
    size = tensors[0].numel()
    first, last = start // 2, (start + size + 1) // 2
    counter = torch.arange(first, last, dtype=torch.int64, device=tensors.device)
    counter.mul_(_STEP)
    out = torch.empty((len(keys), size), dtype=tensors.dtype, device=tensors.device)
    for row, key in zip(out, keys, strict=True):
        lanes = _mix(counter + _hash(key)).view(torch.int32)[start % 2 :][:size]
        row.copy_(_logical_shift(lanes, 8, 24)).mul_(2.0**-24)
    return out.reshape(tensors.shape)


def _hash(key: tuple[Any, ...]) -> int:
    text = "\0".join(str(part) for part in key).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def _mix(word: Tensor) -> Tensor:
    word = word.bitwise_xor_(_logical_shift(word, 30, 34)).mul_(_FIRST)
    word = word.bitwise_xor_(_logical_shift(word, 27, 37)).mul_(_SECOND)
    return word.bitwise_xor_(_logical_shift(word, 31, 33))


def _logical_shift(word: Tensor, by: int, keep: int) -> Tensor:
    # torch shifts signed numbers arithmetically; the mask takes the copied sign bits away.
    return (word >> by).bitwise_and_((1 << keep) - 1)
