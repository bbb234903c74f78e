"""The k-th largest of many magnitudes: bracketed by a sample, settled by counts, ties kept in order.

Magnitudes are handled as their bit patterns, whole numbers of the same order. NumPy counts and compresses
several times faster than torch does on a CPU.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Cut", "bit_patterns", "off_heap"]

_BINS = 1 << 16
# Standard deviations of a sampled rank within which the limit is first looked for.
_SLACK = 6.0
# Values inside the bracket are collected one by one up to so many a block, and counted beyond.
_FEW = 1 << 13


@dataclass(frozen=True, slots=True)
class Cut:
    """What is known of one ranking's limit, the k-th largest bit pattern.

    It lies within `low` and `high`. While `collect`, the values in between are few and collected; after a
    sample that misled, they are counted in bins. `guess` is where it is expected, so that its ties are
    found on the way. `block` and `quota` say in which block the last kept tie is, and which of the ties
    there it is; `last` is its flat index, `infinity` standing for all.
    """

    keep_count: int
    total: int
    low: int = 0
    high: int = 0
    guess: int = -1
    collect: bool = True
    block: int = -1
    quota: int = 0
    last: float | None = None

    @classmethod
    def begin(cls, values: np.ndarray, keep: int, total: int, *, collect: bool = True) -> Cut:
        """From sampled patterns: the whole answer if all were sampled in order, else a bracket around it.

        `collect: false` says that too many values may lie in the bracket to hold them.
        """
        start = cls(keep, total, last=math.inf if keep in (0, total) else None)
        if start.last is not None:
            return start
        size = len(values)
        if size == total and collect:
            limit = int(np.partition(values, size - keep)[size - keep])
            ties = np.flatnonzero(values == limit)
            quota = keep - int(np.count_nonzero(values > limit))
            last = math.inf if quota == len(ties) else int(ties[quota - 1])
            return dataclasses.replace(start, low=limit, high=limit, last=last)
        rising = np.sort(values)
        rank = keep * size // total
        # A limit outside costs passes, never exactness.
        slack = int(_SLACK * (math.sqrt(rank * (size - rank) / size) + 1))
        above, below = rank - slack, rank + slack
        return dataclasses.replace(
            start,
            low=int(rising[-1 - below]) if below < size else 0,
            high=int(rising[-1 - above]) if above >= 0 else int(np.iinfo(values.dtype).max),
            guess=int(rising[-1 - min(rank, size - 1)]),
            collect=collect,
        )

    @property
    def shift(self) -> int:
        """How many low bits one bin unites."""
        return max(0, (self.high - self.low).bit_length() - _BINS.bit_length() + 1)

    def wants(self, start: int) -> bool:
        """Whether the next pass has to see the block that starts there."""
        return self.last is None and self.block in (-1, start)

    def count(self, bits: Tensor, start: int) -> Mapping[str, Any]:
        """What one block adds: counts above and inside the bracket, and where the guess is."""
        values = bits.cpu().numpy()
        if self.block >= 0:
            return {"last": start + int(np.flatnonzero(values == self.low)[self.quota - 1])}
        inside = values[(values >= self.low) & (values <= self.high)]
        found: dict[str, Any] = {"above": int(np.count_nonzero(values > self.high))}
        if not self.collect:
            found["bins"] = np.bincount((inside - self.low) >> self.shift, minlength=self._bins)
        elif len(inside) > _FEW:
            found["counted"] = [tuple(map(off_heap, np.unique(inside, return_counts=True)))]
        else:
            found["single"] = [off_heap(inside)]
        ties = np.flatnonzero(values == self.guess)
        places = off_heap(ties.astype(np.int32)) if len(ties) <= _FEW // 8 else None
        found["tied"] = {start: (len(ties), places)}
        return found

    def narrowed(self, found: Mapping[str, Any]) -> Cut:
        """With what a whole pass counted: closer, or done."""
        if "last" in found:
            return dataclasses.replace(self, last=found["last"])
        values, counts = self._inside(found)
        # reached[i] is how many are at least values[i].
        reached = found["above"] + counts[::-1].cumsum()[::-1]
        if found["above"] >= self.keep_count:
            most = (1 << (63 if self.high >= 1 << 31 else 31)) - 1
            return self._missed(self.high + 1, most)
        if not len(reached) or reached[0] < self.keep_count:
            return self._missed(0, self.low - 1)
        place = int(np.flatnonzero(reached >= self.keep_count)[-1])
        if not self.collect and self.shift:
            low = self.low + (place << self.shift)
            high = min(self.high, low + (1 << self.shift) - 1)
            return dataclasses.replace(self, low=low, high=high)
        quota = self.keep_count - (int(reached[place]) - int(counts[place]))
        return self._settled(int(values[place]), quota, int(counts[place]), found["tied"])

    @property
    def _bins(self) -> int:
        return ((self.high - self.low) >> self.shift) + 1

    def _inside(self, found: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """(values rising, how often each) inside the bracket; bins for values when they are not collected."""
        if not self.collect:
            return np.arange(self._bins) + self.low, found["bins"]
        empty = np.empty(0, dtype=np.int64)
        single = np.unique(np.concatenate(found.get("single", [empty])), return_counts=True)
        parts = [*found.get("counted", ()), single]
        values, counts = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        order = np.argsort(values, kind="stable")
        values, counts = values[order], counts[order]
        first = np.flatnonzero(np.diff(values, prepend=-1))
        return values[first], np.add.reduceat(counts, first) if len(first) else counts

    def _missed(self, low: int, high: int) -> Cut:
        return dataclasses.replace(self, low=low, high=high, guess=-1, collect=False)

    def _settled(
        self, limit: int, quota: int, ties: int, tied: Mapping[int, tuple[int, np.ndarray | None]]
    ) -> Cut:
        """The limit being known: which of the values that equal it stay."""
        known = dataclasses.replace(self, low=limit, high=limit)
        if quota == ties:
            return dataclasses.replace(known, last=math.inf)
        if self.guess != limit:
            return dataclasses.replace(known, guess=limit, collect=True)
        for start in sorted(tied):
            count, places = tied[start]
            if quota <= count:
                if places is not None:
                    return dataclasses.replace(known, last=start + int(places[quota - 1]))
                return dataclasses.replace(known, block=start, quota=quota)
            quota -= count
        raise AssertionError("fewer ties than were counted")

    def value(self, dtype: torch.dtype) -> float:
        """The k-th largest magnitude itself."""
        return _magnitude(self.low, dtype)

    def keep(self, source: Tensor, into: Tensor, start: int) -> None:
        """Write a block's flat values that stay, and zeros for the others."""
        if self.keep_count == 0:
            into.zero_()
            return
        if self.keep_count == self.total:
            into.copy_(source)
            return
        if self.last is None:
            raise AssertionError("the limit was not settled in as many passes as it can take")
        size = source.numel()
        split = min(size, max(0, int(min(self.last, start + size)) + 1 - start))
        _keep_from(source[:split], into[:split], self.low)
        _keep_from(source[split:], into[split:], self.low + 1)


def off_heap(values: np.ndarray) -> np.ndarray:
    """A copy in memory of its own.

    What stays from every block must not lie on the heap: between blocks of megabytes that come and go it
    would keep the heap from closing up, and memory would grow by a block for each small array.
    """
    if not values.nbytes:
        return values
    copy = np.frombuffer(mmap.mmap(-1, values.nbytes), values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def _keep_from(source: Tensor, into: Tensor, least: int) -> None:
    """Copy the values whose magnitude's bit pattern is at least `least`."""
    if least == 0:
        into.copy_(source)
    else:
        limit = _magnitude(least - 1, source.dtype)
        torch.ops.aten.hardshrink.out(source, limit, out=into)


def _magnitude(pattern: int, dtype: torch.dtype) -> float:
    whole = torch.int32 if dtype.itemsize == 4 else torch.int64
    return float(torch.tensor(pattern, dtype=whole).view(dtype))


def bit_patterns(values: Tensor) -> Tensor:
    """Magnitudes as whole numbers of the same order, [rankings, elements]."""
    flat = values.reshape(values.shape[0], -1).abs()
    return flat.view(torch.int32 if flat.itemsize == 4 else torch.int64)
