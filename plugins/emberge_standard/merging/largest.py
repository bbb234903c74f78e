"""The k-th largest of a tensor's values, exactly, without sorting and in bounded memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge import Block, Measures, MergeTransform, Stats

if TYPE_CHECKING:
    from torch import Tensor

_SAMPLE = 1 << 16
_BINS = 1 << 16
# Standard deviations of a sampled rank within which the limit is first looked for.
_SLACK = 6.0


@dataclass(frozen=True, kw_only=True)
class Ranking(MergeTransform):
    """A transform that keeps the largest of something, having found how large the last one kept is.

    A subclass says what is ranked and how many stay; `stats[-1]["cuts"]` then holds a `Cut` for each row of
    `ranked`. A sample brackets each limit and counts inside the bracket settle it. Among equal values
    those stay that come first in the tensor.
    """

    @property
    def passes(self) -> int:
        # Sample and one count as a rule; up to four counts for a float64 tensor whose sample misled, and
        # two more passes where equal values straddle the limit. A pass that nobody wants reads nothing.
        return 9

    def ranked(self, block: Block) -> Tensor:
        """The values to rank, of which only the magnitude counts, [rankings, *rows]."""
        raise NotImplementedError

    def keeps(self, block: Block, total: int, nonzero: Sequence[int]) -> Sequence[int]:
        """How many of each ranking's `total` values stay; `nonzero` of them are not zero.

        Only a class that sets `counts_nonzero` is told; others get `total`.
        """
        raise NotImplementedError

    @property
    def counts_nonzero(self) -> bool:
        """Whether `keeps` needs to know how many values are not zero: one more reading."""
        return False

    def wants(self, start: int, size: int, stats: Stats) -> bool:
        return not stats or any(cut.wants(start) for cut in stats[-1]["cuts"])

    def measure(self, block: Block, stats: Stats) -> Measures:
        bits = bit_patterns(self.ranked(block))
        if not stats:
            stride = _stride(block.shape)
            found: dict[str, Any] = {"sample": [bits[:, -block.start % stride :: stride].clone()]}
            if self.counts_nonzero:
                found["nonzero"] = bits.count_nonzero(1)
            return found
        found = {}
        for number, (cut, row) in enumerate(zip(stats[-1]["cuts"], bits, strict=True)):
            if cut.wants(block.start):
                found[str(number)] = cut.count(row, block.start)
        return found

    def conclude(self, block: Block, stats: Stats) -> Measures:
        total = math.prod(block.shape)
        if len(stats) == 1:
            import torch

            sample = torch.cat(stats[0]["sample"], dim=1)
            known = stats[0].get("nonzero")
            nonzero = [total] * len(sample) if known is None else known.tolist()
            keeps = self.keeps(block, total, nonzero)
            return {
                "cuts": [
                    Cut.begin(row, keep, total) for row, keep in zip(sample, keeps, strict=True)
                ]
            }
        counted = stats[-1]
        return {
            "cuts": [
                cut.narrowed(counted[str(number)]) if str(number) in counted else cut
                for number, cut in enumerate(stats[-2]["cuts"])
            ]
        }


@dataclass(frozen=True, slots=True)
class Cut:
    """What is known of one model's limit, in bit patterns of magnitudes, which order like the magnitudes.

    The k-th largest lies within `low` and `high`; `tied` counts a guess of it by block; the tie at the flat
    index `last` is the last one kept, -1 standing for none and `infinity` for all.
    """

    keep_count: int
    total: int
    low: int = 0
    high: int = 0
    above: int = 0
    guess: int = -1
    block: int = -1
    quota: int = 0
    last: float | None = None

    @classmethod
    def begin(cls, sample: Tensor, keep: int, total: int) -> Cut:
        """From sampled patterns: the whole answer if all were sampled, else a bracket around it."""
        start = cls(keep, total, last=math.inf if keep in (0, total) else None)
        if start.last is not None:
            return start
        ranked = sample.sort(descending=True).values
        size = ranked.numel()
        if size == total:
            limit = int(ranked[keep - 1])
            above = int((sample > limit).sum())
            ties = (sample == limit).nonzero()[:, 0]
            return dataclasses.replace(
                start, low=limit, high=limit, above=above, last=int(ties[keep - above - 1])
            )
        rank = keep * size // total
        # A miss costs passes, never exactness.
        slack = int(_SLACK * (math.sqrt(rank * (size - rank) / size) + 1))
        most = int(sample.new_tensor(-1).bitwise_and(~_sign(sample)))
        high = int(ranked[rank - slack]) if rank >= slack else most
        low = int(ranked[rank + slack]) if rank + slack < size else 0
        return dataclasses.replace(
            start, low=low, high=high, guess=int(ranked[min(rank, size - 1)])
        )

    @property
    def shift(self) -> int:
        """How many low bits one bin unites."""
        return max(0, (self.high - self.low).bit_length() - _BINS.bit_length() + 1)

    def wants(self, start: int) -> bool:
        """Whether the next pass has to see the block that starts there."""
        return self.last is None and self.block in (-1, start)

    def count(self, bits: Tensor, start: int) -> Measures:
        """What one block adds: counts above and inside the bracket, and of the guess."""
        if self.block >= 0:
            ties = (bits == self.low).nonzero()[self.quota - 1, 0]
            return {"last": start + int(ties)}
        inside = bits[(bits >= self.low) & (bits <= self.high)]
        bins = (inside - self.low).bitwise_right_shift_(self.shift)
        length = ((self.high - self.low) >> self.shift) + 1
        return {
            "above": int((bits > self.high).sum()),
            "bins": bins.long().bincount(minlength=length),
            "tied": {start: int((inside == self.guess).sum())},
        }

    def narrowed(self, found: Measures) -> Cut:
        """With what a whole pass counted: closer, or done."""
        if "last" in found:
            return dataclasses.replace(self, last=found["last"])
        above, bins = found["above"], found["bins"]
        if above >= self.keep_count:
            most = (1 << (63 if self.high >= 1 << 31 else 31)) - 1
            return dataclasses.replace(self, low=self.high + 1, high=most, guess=-1)
        reached = bins.flip(0).cumsum(0)
        if above + int(reached[-1]) < self.keep_count:
            return dataclasses.replace(self, low=0, high=self.low - 1, guess=-1)
        place = int((reached + above >= self.keep_count).nonzero()[0, 0])
        number = len(bins) - 1 - place
        low = self.low + (number << self.shift)
        high = min(self.high, low + (1 << self.shift) - 1)
        above += int(reached[place]) - int(bins[number])
        closer = dataclasses.replace(self, low=low, high=high, above=above)
        return closer._settled(int(bins[number]), found["tied"]) if low == high else closer

    def _settled(self, ties: int, tied: dict[int, int]) -> Cut:
        """The limit being known: which of the values that equal it stay."""
        quota = self.keep_count - self.above
        if quota == ties:
            return dataclasses.replace(self, last=math.inf)
        if self.guess != self.low:
            return dataclasses.replace(self, guess=self.low)
        for start in sorted(tied):
            if quota <= tied[start]:
                return dataclasses.replace(self, block=start, quota=quota)
            quota -= tied[start]
        raise AssertionError("fewer ties than were counted")

    def value(self, dtype: Any) -> float:
        """The k-th largest magnitude itself."""
        import torch

        kind = torch.int32 if dtype.itemsize == 4 else torch.int64
        return float(torch.tensor(self.low, dtype=kind).view(dtype))

    def keep(self, source: Tensor, into: Tensor, start: int) -> None:
        """Copy what stays of a block's flat changes into zeros."""
        if self.keep_count == 0:
            return
        if self.keep_count == self.total or self.last is None:
            into.copy_(source)
            return
        size = source.numel()
        split = min(size, max(0, int(min(self.last, start + size)) + 1 - start))
        _keep_from(source[:split], into[:split], self.low)
        _keep_from(source[split:], into[split:], self.low + 1)


def _keep_from(source: Tensor, into: Tensor, least: int) -> None:
    """Copy the values whose magnitude's bit pattern is at least `least`."""
    import torch

    if least == 0:
        into.copy_(source)
        return
    below = torch.tensor(least - 1, dtype=torch.int32 if source.itemsize == 4 else torch.int64)
    torch.ops.aten.hardshrink.out(source, float(below.view(source.dtype)), out=into)


def bit_patterns(values: Tensor) -> Tensor:
    """Magnitudes as whole numbers of the same order, [rankings, elements]."""
    import torch

    flat = values.reshape(values.shape[0], -1).abs()
    return flat.view(torch.int32 if flat.itemsize == 4 else torch.int64)


def _sign(bits: Tensor) -> int:
    return -(1 << 31) if bits.itemsize == 4 else -(1 << 63)


def _stride(shape: tuple[int, ...]) -> int:
    """Every how many elements one is sampled: no divisor of a row, so that all columns are met."""
    total = math.prod(shape)
    stride = -(-total // _SAMPLE)
    width = shape[-1] if shape else 1
    while stride > 1 and math.gcd(stride, width) > 1:
        stride += 1
    return stride
