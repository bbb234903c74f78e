"""Memory for passing results, used again as soon as nobody holds it."""

from __future__ import annotations

import math
import mmap
import sys
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["pooled_bytes", "pooled_like"]

_LOCAL = threading.local()
# Bytes below which the allocator does as well.
_SMALL = 1 << 16


def pooled_like(like: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """A contiguous tensor of whatever content, typed and (by default) shaped like another.

    It lies in memory of this thread's that no tensor uses any more. New pages cost more than most
    arithmetic on them, and an allocator that many sizes go through, with small results between them that
    stay, holds several times what is in use.
    """
    shape = tuple(like.shape if shape is None else shape)
    count = math.prod(shape)
    size = count * like.itemsize
    if size < _SMALL or like.device.type != "cpu":
        return like.new_empty(shape)
    return torch.frombuffer(_memory(size), dtype=like.dtype, count=count).view(shape)


def _memory(size: int) -> mmap.mmap:
    """Some that is free, and not much too large."""
    held: list[mmap.mmap] = _LOCAL.__dict__.setdefault("held", [])
    # Two hold what is free: the list, and the call that asks.
    free = [i for i in range(len(held)) if sys.getrefcount(held[i]) == 2]
    fitting = [i for i in free if size <= len(held[i]) <= 2 * size]
    if fitting:
        return held[min(fitting, key=lambda i: len(held[i]))]
    # What is too small now was for blocks of another size.
    for i in reversed(free):
        if len(held[i]) < size:
            del held[i]
    held.append(pooled_bytes(size))
    return held[-1]


def pooled_bytes(size: int) -> mmap.mmap:
    """Memory apart from the heap, of this process alone, which goes back when nobody holds it."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
