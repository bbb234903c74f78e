"""The C library's heap: what is freed there is kept for later, or goes back to the system."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

__all__ = ["keep_freed_blocks", "return_freed_memory"]

# Numbers of mallopt's parameters, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_blocks() -> None:
    """Set glibc to reuse the memory of passing blocks: fresh pages cost more than most arithmetic on them."""
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 128 << 20)


def return_freed_memory() -> None:
    """Give the system back whole pages that nothing uses any more.

    Blocks of many sizes, as a model's activations are, leave holes between those that live longer. glibc
    fills few of them again, so that a process grows for hours whose work needs no more than at its start.
    """
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


@functools.cache
def _function(name: str) -> Any:
    """Return a function of glibc; None on other systems."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
