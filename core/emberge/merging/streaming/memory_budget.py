"""Sizes of blocks and granules in elements and bytes, for the scheduler and for a plan's costs."""

from __future__ import annotations

from emberge.tensor_files import QUEUE

__all__ = ["GRANULE", "PRODUCED", "block_elements", "element_bytes", "queue_bytes"]

GRANULE = 1 << 18
"""Elements measured at once. Another value means other last bits in sums, so it never follows the machine."""

PRODUCED = 12 << 20
"""Bytes that a thread's rows may take while they are produced.

Beyond that they leave the caches, and below the calls on them cost more than the arithmetic.
"""


def element_bytes(models: int, *, based: bool, itemsize: int) -> int:
    """Return the bytes that an element takes while it is worked on, over all models.

    They are for the stacked models and a stage's copy of them; with a base also for deltas, before and after.
    """
    return itemsize * (3 * models + 6 if based else 2 * models + 4)


def block_elements(each: int, *, workers: int, memory: int | None) -> int:
    """Return the elements produced at once, at `each` bytes an element.

    All threads, and what waits to be written, take `memory` bytes at most.
    """
    wanted = PRODUCED // max(1, each)
    left = None if memory is None else memory - queue_bytes(memory)
    fitting = wanted if left is None else left // (workers * max(1, each))
    return max(1, min(wanted, fitting))


def queue_bytes(memory: int | None) -> int:
    """Return the bytes that wait to be written: a quarter of the memory, if that is little."""
    return QUEUE if memory is None else min(QUEUE, memory // 4)
