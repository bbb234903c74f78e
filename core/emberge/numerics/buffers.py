"""Memory of a merge's threads: buffers to read files into, a pool for results, and memory outside the heap.

Importing this module loads no torch.
"""

from __future__ import annotations

import math
import mmap
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_THREAD_BUFFERS = threading.local()
# Size in bytes below which the allocator is as fast as the pool.
_LEAST_POOLED_BYTES = 1 << 16
_ALIGNED_BYTES = 64


def reuse_tensor(use: str, elements: int, dtype: torch.dtype, *, pinned: bool = False) -> Tensor:
    """Return this thread's flat buffer for a purpose, of the requested size and arbitrary content.

    A GPU can copy from a `pinned` buffer asynchronously.
    """
    import torch

    buffers: dict[tuple[str, torch.dtype], Tensor] = _THREAD_BUFFERS.__dict__.setdefault(
        "buffers", {}
    )
    buffer = buffers.get((use, dtype))
    if buffer is None or buffer.numel() < elements:
        buffer = buffers[use, dtype] = torch.empty(elements, dtype=dtype, pin_memory=pinned)
    return buffer[:elements]


def reuse_bytes(use: str, size: int) -> np.ndarray:
    """Return this thread's buffer of `size` bytes for a purpose, with arbitrary content.

    It begins at a multiple of 64 bytes.
    """
    buffers: dict[str, np.ndarray] = _THREAD_BUFFERS.__dict__.setdefault("bytes", {})
    buffer = buffers.get(use)
    if buffer is None or buffer.size < size:
        memory: np.ndarray = np.empty(size + _ALIGNED_BYTES, np.uint8)
        buffer = buffers[use] = memory[-memory.ctypes.data % _ALIGNED_BYTES :]
    return buffer[:size]


def take_tensor_like(like: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Return a contiguous tensor of arbitrary content, typed and (by default) shaped like another.

    The memory is that of an earlier result of this thread to which no tensor refers any more. Allocating new
    pages costs more than most arithmetic on them. A general allocator, with small live results between the
    large ones, would occupy several times the memory in use.
    """
    shape = tuple(like.shape if shape is None else shape)
    count = math.prod(shape)
    size = count * like.itemsize
    if size < _LEAST_POOLED_BYTES or like.device.type != "cpu":
        return like.new_empty(shape)
    import torch

    return torch.frombuffer(_take_memory(size), dtype=like.dtype, count=count).view(shape)


def take_pooled_array(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Return a contiguous NumPy array of arbitrary content from the same pool.

    A tensor around it (`torch.from_numpy`) costs less than a tensor whose memory is asked for by torch: each
    call of torch gives the interpreter's lock away, and then waits for it.
    """
    count = math.prod(shape)
    size = count * np.dtype(dtype).itemsize
    if size < _LEAST_POOLED_BYTES:
        return np.empty(tuple(shape), dtype)
    return np.frombuffer(_take_memory(size), dtype, count).reshape(shape)


def _take_memory(size: int) -> mmap.mmap:
    """Return free memory of a fitting size from the pool, or new memory."""
    pool: list[mmap.mmap] = _THREAD_BUFFERS.__dict__.setdefault("pool", [])
    # Free memory has two references: the list's, and that of the call to getrefcount.
    free_indices = [i for i in range(len(pool)) if sys.getrefcount(pool[i]) == 2]
    fitting_indices = [i for i in free_indices if size <= len(pool[i]) <= 2 * size]
    if fitting_indices:
        return pool[min(fitting_indices, key=lambda i: len(pool[i]))]
    # What is too small now was for blocks of another size.
    for i in reversed(free_indices):
        if len(pool[i]) < size:
            del pool[i]
    pool.append(map_memory(size))
    return pool[-1]


def map_array(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Return an array outside the heap, of arbitrary content, for results that outlive their block.

    On the heap, a small array between freed blocks of megabytes would keep their memory from being returned.
    """
    count = math.prod(shape)
    memory = map_memory(max(1, count * np.dtype(dtype).itemsize))
    return np.frombuffer(memory, dtype, count).reshape(tuple(shape))


def map_memory(size: int) -> mmap.mmap:
    """Return private memory outside the heap, which is freed with its last reference."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
