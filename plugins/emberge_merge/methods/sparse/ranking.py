"""The k-th largest of a tensor's values, exactly, without sorting and in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from emberge import Block, Measures, MergeTransform, Pass, Stats
from emberge.contracts import as_row_shape

if TYPE_CHECKING:
    import numpy as np

    from emberge_merge.methods.sparse.cut import Cut, Tally

_SAMPLE_SIZE = 1 << 15


def _join_tallies(measures: Sequence[Measures]) -> Measures:
    from emberge_merge.methods.sparse.cut import Tally

    numbers = dict.fromkeys(number for one in measures for number in one)
    return {n: Tally.union([one[n] for one in measures if n in one]) for n in numbers}


def _is_any_open(stats: Stats) -> bool:
    """Return whether any limit is still looked for."""
    return not all(cut.is_final for cut in stats[-1]["cuts"])


@dataclass(frozen=True, kw_only=True)
class Ranking(MergeTransform):
    """Transform that keeps the largest values, after passes that find the smallest value to keep.

    A subclass defines what is ranked and how many values are kept; `stats[-1]["cuts"]` then has a `Cut` for
    each row of `ranked`. A sample brackets each limit, and counts inside the bracket find the limit. Among
    equal values, the first ones are kept.
    """

    counts_nonzero: ClassVar[bool] = False
    """True if `count_kept` needs the number of nonzero values."""
    limits_per_model: ClassVar[int] = 1
    """Number of limits of each model, for which `count_kept` returns neighbouring numbers."""
    # After the sample, mostly two passes read all rows: one counts in a bracket, and one picks the limit.
    # Eight are always enough: one may find that the bracket missed the limit, four cut 63 bits by 16 each.
    passes = (
        Pass(is_exact=True, is_sample=True),
        *[Pass(is_exact=True, join=_join_tallies, is_needed=_is_any_open)] * 8,
    )

    def choose_ranked(self, block: Block) -> Block:
        """Return the block whose deltas are ranked by magnitude, model by model; default: the block."""
        return block

    def count_kept(self, block: Block, total: int, nonzero: Sequence[int]) -> Sequence[int]:
        """Return how many of each ranking's `total` values to keep; `nonzero` counts the nonzero values.

        Nonzero values are counted only if the class sets `counts_nonzero`; otherwise `nonzero` is `total`.
        """
        raise NotImplementedError

    def measure(self, block: Block, stats: Stats) -> Measures:
        import numpy as np

        from emberge_merge.methods.sparse.cut import copy_off_heap, view_bit_patterns

        if not stats:
            sampled = self.choose_ranked(block.take_runs(_sample_stride(block.shape)))
            patterns = [view_bit_patterns(one) for one in sampled.rows.decode_deltas()]
            return {"sample": [copy_off_heap(np.stack(patterns))]}
        cuts = stats[-1]["cuts"]
        model_by_cut = {
            n: n // self.limits_per_model for n, cut in enumerate(cuts) if not cut.is_final
        }
        return _count_block(self.choose_ranked(block), cuts, model_by_cut)

    def conclude(self, block: Block, stats: Stats) -> Measures:
        if len(stats) == 1:
            return {"cuts": self._begin_cuts(block, stats[0]["sample"])}
        cuts, tallies = stats[-2]["cuts"], stats[-1]
        if not all(cut.is_exact for cut in cuts):
            nonzero = [tally.nonzero for tally in tallies.values()]
            keep_counts = self.count_kept(block, cuts[0].total, nonzero)
            cuts = [cut.with_count(keep) for cut, keep in zip(cuts, keep_counts, strict=True)]
        narrowed = (
            cut if cut.is_final else cut.narrow(tallies[str(number)])
            for number, cut in enumerate(cuts)
        )
        return {"cuts": list(narrowed)}

    def _begin_cuts(self, block: Block, sampled: Sequence[np.ndarray]) -> list[Cut]:
        import numpy as np

        from emberge_merge.methods.sparse.cut import Cut

        sample = np.concatenate(sampled, axis=1)
        size, total = sample.shape[1], math.prod(block.shape)
        counts = np.count_nonzero(sample, axis=1).tolist() if self.counts_nonzero else []
        nonzero = [count * total // size for count in counts] or [total] * len(sample)
        is_exact = size == total or not self.counts_nonzero
        return [
            Cut.begin(sample[number // self.limits_per_model], keep, total, is_exact=is_exact)
            for number, keep in enumerate(self.count_kept(block, total, nonzero))
        ]


def _count_block(
    block: Block, cuts: Sequence[Cut], model_by_cut: Mapping[int, int]
) -> dict[str, Tally]:
    """Return counts for unfinished cuts; `model_by_cut` maps a cut's index to the model that it ranks."""
    from emberge_merge.methods.sparse.cut import view_bit_patterns
    from emberge_merge.methods.sparse.near_limits import CountNearLimits

    width = max(1, as_row_shape(block.shape)[1])
    collected = [number for number in model_by_cut if cuts[number].collect]
    brackets = [cuts[number].find_bracket(model_by_cut[number]) for number in collected]
    counts = block.evaluate(CountNearLimits(brackets, width)) if brackets else []
    tallies = {
        number: cuts[number].tally(count, block.start, block.size, width)
        for number, count in zip(collected, counts, strict=True)
    }
    to_bin = [number for number in model_by_cut if number not in tallies]
    if to_bin:
        deltas = block.rows.decode_deltas()
        for number in to_bin:
            patterns = view_bit_patterns(deltas[model_by_cut[number]]).reshape(-1)
            tallies[number] = cuts[number].count_in_bins(patterns)
    return {str(number): tallies[number] for number in model_by_cut}


def _sample_stride(shape: tuple[int, ...]) -> int:
    """Return the stride of sampled runs; it does not divide a row's size, so all columns are sampled."""
    total = math.prod(shape)
    stride = -(-total // max(_SAMPLE_SIZE, min(total >> 9, 16 * _SAMPLE_SIZE)))
    width = shape[-1] if shape else 1
    while stride > 1 and math.gcd(stride, width) > 1:
        stride += 1
    return stride
