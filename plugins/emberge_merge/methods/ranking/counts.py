"""Counts of the values near a ranking's limit, block by block and united."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from emberge import pooled_bytes

__all__ = ["Tally", "off_heap"]

# Collected values that are kept; of more the blocks are read again and counted in bins.
_HELD = 1 << 23


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of blocks for one ranking: the values `above` the bracket, and those `inside` it.

    `values` are those inside that are not frequent, `homes` the rows they are in; both are None when there
    are too many to keep. Of each frequent one `ties` counts how many are in every row, [frequent, rows], and
    `rows` where the rows begin. `bins` counts what is inside instead of all that. `nonzero` are not zero.
    """

    above: int
    inside: int
    nonzero: int
    values: np.ndarray | None = None
    homes: np.ndarray | None = None
    ties: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.int32))
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    bins: np.ndarray | None = None

    @classmethod
    def union(cls, parts: Sequence[Tally]) -> Tally:
        """Unite the counts of several blocks, in their order."""
        before = np.cumsum([0, *(len(part.rows) for part in parts)]).astype(np.int32)
        values = [part.values for part in parts if part.values is not None]
        homes = [
            p.homes + shift for p, shift in zip(parts, before, strict=False) if p.homes is not None
        ]
        bins = [part.bins for part in parts if part.bins is not None]
        held = len(values) == len(parts) and sum(map(len, values)) <= _HELD
        return cls(
            sum(part.above for part in parts),
            sum(part.inside for part in parts),
            sum(part.nonzero for part in parts),
            off_heap(np.concatenate(values)) if held else None,
            off_heap(np.concatenate(homes)) if held else None,
            off_heap(np.concatenate([part.ties for part in parts], axis=1)),
            off_heap(np.concatenate([part.rows for part in parts])),
            np.sum(bins, axis=0) if bins else None,
        )


def off_heap(values: np.ndarray) -> np.ndarray:
    """Return a copy in memory of its own.

    What stays from every block must not be on the heap: between blocks of megabytes that come and go it
    would keep the heap from closing up, and memory would grow by a block for each small array.
    """
    if not values.nbytes:
        return values
    copy = np.frombuffer(pooled_bytes(values.nbytes), values.dtype).reshape(values.shape)
    copy[...] = values
    return copy
