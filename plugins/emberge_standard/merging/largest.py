"""The k-th largest of a tensor's values, exactly, without sorting and in bounded memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from emberge import Block, Measures, MergeTransform, Stats

if TYPE_CHECKING:
    from torch import Tensor

    from emberge_standard.merging.cut import Cut

_SAMPLE = 1 << 16
# Of a layer or model every so manieth element is sampled, a prime: its size is not known before.
_STRIDE = 4099


@dataclass(frozen=True, kw_only=True)
class Ranking(MergeTransform):
    """A transform that keeps the largest of something, having found how large the last one kept is.

    A subclass says what is ranked and how many stay; `stats[-1]["cuts"]` then holds a `Cut` for each row of
    `ranked`. A sample brackets each limit and counts inside the bracket settle it. Among equal values
    those stay that come first.

    With a wider `scope` than a tensor, all its tensors are ranked as one laid end to end; then
    `stats[-1]["offset"]` is where this one begins.
    """

    passes = 9

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
        return not stats or any(c.wants(start + stats[-1]["offset"]) for c in stats[-1]["cuts"])

    @property
    def limits(self) -> int:
        """How many limits each ranking has; `keeps` gives all of the first, then of the second, and on."""
        return 1

    def measure(self, block: Block, stats: Stats) -> Measures:
        from emberge_standard.merging.cut import bit_patterns, off_heap

        bits = bit_patterns(self.ranked(block))
        if not stats:
            stride = _stride(block.shape) if self.scope == "tensor" else _STRIDE
            found: dict[str, Any] = {
                "sample": [off_heap(bits[:, -block.start % stride :: stride].cpu().numpy())],
                "sizes": {block.name: bits.shape[1]},
            }
            if self.counts_nonzero:
                found["nonzero"] = bits.count_nonzero(1)
            return found
        found, start = {}, block.start + stats[-1]["offset"]
        for number, cut in enumerate(stats[-1]["cuts"]):
            if cut.wants(start):
                found[str(number)] = cut.count(bits[number // self.limits], start)
        return found

    def conclude(self, block: Block, stats: Stats) -> Measures:
        known = stats[-1]
        if "cuts" not in known:
            # All tensors of a scope are told the same measures: what follows from them is found once.
            found = (
                self._begin(block, known)
                if len(stats) == 1
                else _narrowed(stats[-2]["cuts"], known)
            )
            known = cast("dict[str, Any]", known)
            known["cuts"] = found
        offset = _before(block.name, known["sizes"]) if len(stats) == 1 else stats[-2]["offset"]
        return {"cuts": known["cuts"], "offset": offset}

    def _begin(self, block: Block, known: Measures) -> list[Cut]:
        import numpy as np

        from emberge_standard.merging.cut import Cut

        if len({len(part) for part in known["sample"]}) > 1:
            raise ValueError(
                "not every model has every tensor, and what is ranked together must be complete"
            )
        sample = np.concatenate(known["sample"], axis=1)
        total = sum(known["sizes"].values())
        nonzero = known["nonzero"].tolist() if self.counts_nonzero else [total] * len(sample)
        keeps = self.keeps(block, total, nonzero)
        # Few values of each block are many of a model: there they are counted in bins.
        collect = self.scope == "tensor"
        return [
            Cut.begin(sample[number // self.limits], keep, total, collect=collect)
            for number, keep in enumerate(keeps)
        ]


def _narrowed(cuts: Sequence[Cut], counted: Measures) -> list[Cut]:
    return [
        cut.narrowed(counted[str(number)]) if str(number) in counted else cut
        for number, cut in enumerate(cuts)
    ]


def _before(name: str, sizes: Mapping[str, int]) -> int:
    """How many elements the tensors before this one hold."""
    return sum(size for _, size in itertools.takewhile(lambda item: item[0] != name, sizes.items()))


def _stride(shape: tuple[int, ...]) -> int:
    """Every how many elements one is sampled: no divisor of a row, so that all columns are met."""
    total = math.prod(shape)
    stride = -(-total // _SAMPLE)
    width = shape[-1] if shape else 1
    while stride > 1 and math.gcd(stride, width) > 1:
        stride += 1
    return stride
