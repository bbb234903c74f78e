"""Counts of the values near a ranking's limit, block by block and united."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from emberge.numerics import pooled_bytes

__all__ = ["Run", "Tally", "off_heap"]

# Collected values that are kept; of more the blocks are read again and counted in bins.
_HELD = 1 << 23
# Bytes from which runs are no longer put together: copies of all that was counted would double the memory.
_LARGE = 1 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """Values of blocks that follow one another: those inside a bracket that are not frequent, and ties.

    `values` are in the rows `homes`, counted from the run's first one; of each frequent value `ties` counts
    how many are in every row, [frequent, rows], and `rows` has where the rows begin.
    """

    values: np.ndarray
    homes: np.ndarray
    ties: np.ndarray
    rows: np.ndarray

    @staticmethod
    def counted_as(width: int) -> np.dtype[Any]:
        """Return the smallest type that counts up to all values of a row."""
        return np.min_scalar_type(width)

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(one.nbytes for one in (self.values, self.homes, self.ties, self.rows))

    def by_row(self, limit: int, frequent: Sequence[int]) -> np.ndarray:
        """Return how many values equal a limit, row by row."""
        if limit in frequent:
            ties: np.ndarray = self.ties[frequent.index(limit)]
            return ties
        return np.bincount(self.homes[self.values == limit], minlength=len(self.rows))


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of blocks for one ranking: the values `above` the bracket, and those `inside` it.

    `runs` have what was collected, None when that is too much to keep, or when `bins` count what is inside
    instead. `nonzero` are not zero.
    """

    above: int
    inside: int
    nonzero: int
    runs: Sequence[Run] | None = None
    bins: np.ndarray | None = None

    @classmethod
    def union(cls, parts: Sequence[Tally]) -> Tally:
        """Unite the counts of several blocks, in their order."""
        bins = [part.bins for part in parts if part.bins is not None]
        known = [part.runs for part in parts if part.runs is not None]
        runs = [run for some in known for run in some]
        held = len(known) == len(parts) and sum(len(run.values) for run in runs) <= _HELD
        return cls(
            sum(part.above for part in parts),
            sum(part.inside for part in parts),
            sum(part.nonzero for part in parts),
            list(_packed(runs)) if held else None,
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


def _packed(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield the runs, small neighbours put together."""
    small: list[Run] = []
    for run in runs:
        if run.nbytes >= _LARGE:
            yield from _together(small)
            small = []
            yield run
        else:
            small.append(run)
    yield from _together(small)


def _together(runs: Sequence[Run]) -> Iterator[Run]:
    if len(runs) < 2:
        yield from runs
        return
    before = np.cumsum([0, *(len(run.rows) for run in runs)]).astype(np.int32)
    homes = [run.homes + shift for run, shift in zip(runs, before, strict=False)]
    yield Run(
        off_heap(np.concatenate([run.values for run in runs])),
        off_heap(np.concatenate(homes)),
        off_heap(np.concatenate([run.ties for run in runs], axis=1)),
        off_heap(np.concatenate([run.rows for run in runs])),
    )
