"""The k-th largest of many magnitudes: bracketed by a sample, found by counts, ties kept in order.

Magnitudes are handled as their bit patterns, whole numbers of the same order. NumPy counts and compresses
several times faster than torch does on a CPU.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from emberge.numerics import Limit

from emberge_merge.methods.ranking.counts import Run, Tally

if TYPE_CHECKING:
    import torch

__all__ = ["Cut"]

_BINS = 1 << 16
# Standard deviations of a sampled rank within which the limit is first looked for.
_SLACK = 4.5
# So many values are collected where they are expected inside the bracket; more are counted in bins.
_MANY = 1 << 22
# A value that is in the sample so often is counted row by row; so many of them at most.
_OFTEN, _FREQUENT = 8, 8


@dataclass(frozen=True, slots=True)
class Cut:
    """The knowledge of one ranking's limit, the k-th largest bit pattern: it is from `low` to `high`.

    `frequent` values in between have many ties, which are counted row by row. The others are collected with
    the rows they are in, or counted in bins while they are many. At the end `row`
    is the flat index where the row begins that has the last tie that stays, the `quota`-th in it, with
    infinity for all. While `keep_count` is not `sure`, but estimated from the sample, zeros do not count.
    """

    keep_count: int
    total: int
    sure: bool = True
    low: int = 0
    high: int = 0
    frequent: tuple[int, ...] = ()
    collect: bool = True
    row: float | None = None
    quota: int = 0

    @classmethod
    def begin(cls, values: np.ndarray, keep: int, total: int, *, sure: bool = True) -> Cut:
        """Start from sampled patterns: with the answer if all were sampled in order, else a bracket of it."""
        size, start = len(values), cls(keep, total, sure=False)
        if size == total and sure and keep:
            limit = int(np.partition(values, size - keep)[size - keep])
            above = int(np.count_nonzero(values > limit))
            last = int(np.flatnonzero(values == limit)[keep - above - 1])
            return dataclasses.replace(start, sure=True, low=limit, high=limit, row=last, quota=1)
        start = start.surely(keep) if sure or keep == total else start
        if start.settled:
            return start
        rank = keep * size // total
        # A limit outside costs passes, never exactness.
        slack = int(_SLACK * (math.sqrt(rank * (size - rank) / size) + 1))
        first, last = max(0, size - 1 - rank - slack), min(size, size - rank + slack)
        between, often = np.unique(
            np.partition(values, (first, last - 1))[first:last], return_counts=True
        )
        least = 0 if sure else 1
        low = int(between[0]) if first else 0
        high = int(between[-1]) if last < size else int(np.iinfo(values.dtype).max)
        shared = between[np.argsort(-often)][: int(np.count_nonzero(often >= _OFTEN))].tolist()
        return dataclasses.replace(
            start,
            low=max(low, least),
            high=max(high, least),
            frequent=tuple([pattern for pattern in shared if pattern >= least][:_FREQUENT]),
            collect=2 * slack * total // size <= _MANY,
        )

    def surely(self, keep: int) -> Cut:
        """Return the cut with the number that stays, when it is known."""
        row = math.inf if keep in (0, self.total) else self.row
        return dataclasses.replace(self, keep_count=keep, sure=True, row=row)

    @property
    def settled(self) -> bool:
        """True if it needs no further pass."""
        return self.row is not None

    @property
    def shift(self) -> int:
        """The number of low bits that one bin unites."""
        return max(0, (self.high - self.low).bit_length() - _BINS.bit_length() + 1)

    def count(self, bits: np.ndarray, start: int, width: int) -> Tally:
        """Count a block of rows of `width`; `start` is the flat index of its first value."""
        unsigned = np.dtype(f"u{bits.itemsize}").type
        # Values below wrap around to large ones, so that one comparison finds what is inside.
        shifted = bits.view(unsigned) - unsigned(self.low)
        places = np.flatnonzero(shifted <= unsigned(self.high - self.low))
        values, inside = bits[places], len(places)
        above = int(np.count_nonzero(bits > self.high))
        nonzero = len(bits) if self.sure else int(np.count_nonzero(bits))
        if not self.collect:
            highest = (self.high - self.low) >> self.shift
            bins = np.bincount((values - self.low) >> self.shift, minlength=highest + 1)
            return Tally(above, inside, nonzero, bins=bins)
        rows = np.arange(start, start + len(bits), max(1, width))
        homes = (places // max(1, width)).astype(np.int32)
        which = np.zeros(inside, np.int32)
        for number, pattern in enumerate(self.frequent, 1):
            which += np.int32(number) * (values == pattern)
        cells = (len(self.frequent) + 1) * len(rows)
        ties = np.bincount(which * len(rows) + homes, minlength=cells).reshape(-1, len(rows))[1:]
        other = which == 0
        run = Run(values[other], homes[other], ties.astype(Run.counted_as(width)), rows)
        return Tally(above, inside, nonzero, [run])

    def narrowed(self, tally: Tally) -> Cut:
        """Return the cut after a whole pass was counted: with a closer bracket, or the answer."""
        if tally.above >= self.keep_count:
            most = (1 << (63 if self.high >= 1 << 31 else 31)) - 1
            return self._counted(self.high + 1, most)
        if tally.above + tally.inside < self.keep_count:
            return self._counted(0, self.low - 1)
        if tally.bins is not None:
            return self._in_a_bin(tally.above, tally.bins)
        if tally.runs is None:
            return self._counted(self.low, self.high)
        limit, quota = self._limit(tally.runs, self.keep_count - tally.above)
        by_row = np.concatenate([run.by_row(limit, self.frequent) for run in tally.runs])
        reached = by_row.cumsum()
        at = int(np.searchsorted(reached, quota))
        known = dataclasses.replace(self, low=limit, high=limit)
        if quota == reached[-1]:
            return dataclasses.replace(known, row=math.inf)
        quota -= int(reached[at] - by_row[at])
        begins = np.concatenate([run.rows for run in tally.runs])
        return dataclasses.replace(known, row=int(begins[at]), quota=quota)

    def _counted(self, low: int, high: int) -> Cut:
        return dataclasses.replace(self, low=low, high=high, frequent=(), collect=False)

    def _in_a_bin(self, above: int, bins: np.ndarray) -> Cut:
        reached = above + bins[::-1].cumsum()[::-1]
        place = int(np.flatnonzero(reached >= self.keep_count)[-1])
        low = self.low + (place << self.shift)
        high = min(self.high, low + (1 << self.shift) - 1)
        if high - low < _FREQUENT:
            patterns = tuple(range(low, high + 1))
            return dataclasses.replace(self, low=low, high=high, frequent=patterns, collect=True)
        return dataclasses.replace(self, low=low, high=high, collect=bool(bins[place] <= _MANY))

    def _limit(self, runs: Sequence[Run], keep: int) -> tuple[int, int]:
        """Return (the limit, how many values that equal it stay), if `keep` of those inside stay."""
        others = np.concatenate([run.values for run in runs])
        counts = np.sum([run.ties.sum(1) for run in runs], axis=0).tolist()
        for pattern, count in sorted(zip(self.frequent, counts, strict=True), reverse=True):
            larger = int(np.count_nonzero(others > pattern))
            if larger >= keep:
                break
            if larger + count >= keep:
                return pattern, keep - larger
            keep -= count
        limit = int(np.partition(others, len(others) - keep)[len(others) - keep])
        return limit, keep - int(np.count_nonzero(others > limit))

    def value(self, dtype: torch.dtype) -> float:
        """Return the k-th largest magnitude itself."""
        return Limit.magnitude(self.low, dtype)

    @property
    def limit(self) -> Limit:
        """The limit for a block's values, when it is settled."""
        if self.keep_count in (0, self.total):
            return Limit.all() if self.keep_count else Limit.nothing()
        if self.row is None:
            raise AssertionError("the limit was not settled in as many passes as it can take")
        return (
            Limit(self.low) if self.row == math.inf else Limit(self.low, int(self.row), self.quota)
        )
