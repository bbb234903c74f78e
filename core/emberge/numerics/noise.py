"""Reproducible random numbers: each is a hash of an element's key and position."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from emberge.numerics.buffers import take_tensor_like

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_WORD = 1 << 32
# Weyl's step of 2³² divided by the golden ratio, then the two rounds of lowbias32 (Wellons, 2018).
_WEYL_STEP = 0x9E3779B9
_ROUNDS = ((16, 0x21F0AAAD), (15, 0xD35A2D97))
_LAST_SHIFT = 15


def draw_uniform(tensors: Tensor, start: int, keys: Sequence[tuple[Any, ...]]) -> Tensor:
    """Return numbers in [0, 1) shaped and typed like `tensors` [models, *rows], with 24 random bits each.

    Model m's element i is a hash of only `keys[m]` and `start + i`: it is the same for any block, order,
    worker and device. Positions are mixed once for all models, and then multiplied by two odd numbers of the
    key, with the upper half folded into the lower half in between.

    Raises:
        ValueError: if there is not one key for each model.
    """
    if len(keys) != tensors.shape[0]:
        raise ValueError(f"{len(keys)} keys for {tensors.shape[0]} models")
    size, device = tensors[0].numel(), None if tensors.device.type == "cpu" else tensors.device
    numbers = take_tensor_like(tensors, (len(keys), size))
    position_hashes = _mix_positions(start + 1, size, device)
    for row, key in zip(numbers, keys, strict=True):
        row.copy_(_apply_key(position_hashes, *hash_key(key)))
    return numbers.mul_(2.0**-24).reshape(tensors.shape)


def hash_key(key: tuple[object, ...]) -> tuple[int, int]:
    """Return the two odd multipliers below 2³² of a key."""
    text = "\0".join(str(part) for part in (*key, 0)).encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return digest % _WORD | 1, digest // _WORD | 1


def _mix_positions(first: int, size: int, device: torch.device | None) -> Any:
    """Return hashes of positions as 32-bit words, by NumPy on a CPU, where it is faster than torch."""
    if device is None:
        words: Any = np.arange(size, dtype=np.uint32)
    else:
        import torch

        words = torch.arange(size, device=device)
    words += first % _WORD  # positions count from 1, as a zero stays zero under any multiplication
    _multiply_words(words, _WEYL_STEP)
    for shift, factor in _ROUNDS:
        words ^= words >> shift
        _multiply_words(words, factor)
    words ^= words >> _LAST_SHIFT
    return words


def _apply_key(position_hashes: Any, first_factor: int, second_factor: int) -> Tensor:
    """Return 24 random bits for each position."""
    import torch

    is_array = isinstance(position_hashes, np.ndarray)
    words = position_hashes.copy() if is_array else position_hashes.clone()
    _multiply_words(words, first_factor)
    words ^= words >> 16
    _multiply_words(words, second_factor)
    words >>= 8
    return torch.from_numpy(words.view(np.int32)) if isinstance(words, np.ndarray) else words


def _multiply_words(words: Any, factor: int) -> None:
    """Multiply words in place, modulo 2³²; in torch they are the lower halves of int64 numbers."""
    words *= factor
    if not isinstance(words, np.ndarray):
        words &= _WORD - 1
