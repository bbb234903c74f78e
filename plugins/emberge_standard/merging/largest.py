"""The k-th largest of a tensor's values, exactly, without sorting and in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge import Block, Measures, MergeTransform, Stats

if TYPE_CHECKING:
    from torch import Tensor

_SAMPLE = 1 << 16


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

    @property
    def limits(self) -> int:
        """How many limits each ranking has; `keeps` gives all of the first, then of the second, and on."""
        return 1

    def measure(self, block: Block, stats: Stats) -> Measures:
        from emberge_standard.merging.cut import bit_patterns, off_heap

        bits = bit_patterns(self.ranked(block))
        if not stats:
            stride = _stride(block.shape)
            found: dict[str, Any] = {
                "sample": [off_heap(bits[:, -block.start % stride :: stride].cpu().numpy())]
            }
            if self.counts_nonzero:
                found["nonzero"] = bits.count_nonzero(1)
            return found
        found = {}
        for number, cut in enumerate(stats[-1]["cuts"]):
            if cut.wants(block.start):
                found[str(number)] = cut.count(bits[number // self.limits], block.start)
        return found

    def conclude(self, block: Block, stats: Stats) -> Measures:
        total = math.prod(block.shape)
        if len(stats) == 1:
            import numpy as np

            from emberge_standard.merging.cut import Cut

            sample = np.concatenate(stats[0]["sample"], axis=1)
            known = stats[0].get("nonzero")
            nonzero = [total] * len(sample) if known is None else known.tolist()
            keeps = self.keeps(block, total, nonzero)
            return {
                "cuts": [
                    Cut.begin(sample[number // self.limits], keep, total)
                    for number, keep in enumerate(keeps)
                ]
            }
        counted = stats[-1]
        return {
            "cuts": [
                cut.narrowed(counted[str(number)]) if str(number) in counted else cut
                for number, cut in enumerate(stats[-2]["cuts"])
            ]
        }


def _stride(shape: tuple[int, ...]) -> int:
    """Every how many elements one is sampled: no divisor of a row, so that all columns are met."""
    total = math.prod(shape)
    stride = -(-total // _SAMPLE)
    width = shape[-1] if shape else 1
    while stride > 1 and math.gcd(stride, width) > 1:
        stride += 1
    return stride
