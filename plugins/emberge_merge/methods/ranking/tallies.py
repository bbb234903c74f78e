"""Counting a block's magnitudes near several limits at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from emberge import Block
from emberge.numerics import Limit

from emberge_merge.methods.ranking.counts import Run, Tally
from emberge_merge.methods.shapes import by_model

if TYPE_CHECKING:
    from emberge_merge.methods.ranking.cut import Cut

__all__ = ["count_all"]


def count_all(
    block: Block, cuts: Sequence[Cut], left: Mapping[int, int], offset: int
) -> Iterator[tuple[str, Tally]]:
    """Yield by number the counts for the cuts `left`, given the delta that each one ranks.

    `offset` is the tensor's first place among those that are ranked together.
    """
    start = block.start + offset
    width = max(1, math.prod(block.shape[1:] if len(block.shape) > 1 else block.shape))
    program = block.delta_program() if all(cuts[n].collect for n in left) else None
    if program is None:
        known: dict[int, np.ndarray] = {}
        deltas = by_model(block.deltas) if left else ()
        for number, row in left.items():
            bits = known[row] if row in known else Limit.patterns(deltas[row])
            known = {row: bits}
            yield str(number), cuts[number].count(bits, start, width)
        return
    some = [cuts[n] for n in left]
    brackets = np.array([(cut.low, cut.high) for cut in some], np.int64).reshape(-1, 2)
    most = max((len(cut.frequent) for cut in some), default=0)
    frequent = np.full((len(some), most), -1, np.int64)
    for listed, cut in zip(frequent, some, strict=True):
        listed[: len(cut.frequent)] = cut.frequent
    counts, values, homes, ties = program.tally(list(left.values()), brackets, frequent, width)
    rows = np.arange(start, start + block.size, width)
    for number, cut, count, *found in zip(
        left, some, counts.tolist(), values, homes, ties, strict=True
    ):
        above, inside, nonzero, collected = count
        own, of, by_row = found
        yield (
            str(number),
            Tally(
                above,
                inside,
                block.size if cut.sure else nonzero,
                [
                    Run(
                        own[:collected].copy(),
                        of[:collected].copy(),
                        by_row[: len(cut.frequent)].astype(Run.counted_as(width)),
                        rows,
                    )
                ],
            ),
        )
