"""Counts of magnitudes near the limits that a ranking looks for, in rows of one width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from emberge.numerics import DeltaProgram, KernelRows, take_pooled_array

from emberge_merge.methods.sparse.cut import Bracket, BracketCount, view_bit_patterns


@dataclass(frozen=True, slots=True)
class CountNearLimits:
    """The counts of the deltas' magnitudes for each bracket, in rows of `width` elements.

    Brackets are in the order of models.
    """

    brackets: Sequence[Bracket]
    width: int

    of_deltas = True

    def by_torch(self, rows: DeltaProgram) -> list[BracketCount]:
        flat = rows.deltas.reshape(len(rows.deltas), -1)
        patterns: dict[int, np.ndarray] = {}
        counts = []
        for bracket in self.brackets:
            # One model's patterns are in memory at a time.
            if bracket.model not in patterns:
                patterns = {bracket.model: view_bit_patterns(flat[bracket.model])}
            counts.append(_count(patterns[bracket.model], bracket, self.width))
        return counts

    def by_kernels(self, rows: KernelRows) -> list[BracketCount]:
        limits, row_count = len(self.brackets), -(-rows.size // self.width)
        most_frequent = max((len(bracket.frequent) for bracket in self.brackets), default=0)
        frequent = np.full((limits, most_frequent), -1, np.int64)
        for listed, bracket in zip(frequent, self.brackets, strict=True):
            listed[: len(bracket.frequent)] = bracket.frequent
        models, lows, highs = np.array([one[:3] for one in self.brackets], np.int64).T.copy()
        counts = np.zeros((limits, 4), np.int64)
        values, row_indices = (take_pooled_array((limits, rows.size), np.int32) for _ in range(2))
        ties = np.zeros((limits, most_frequent, row_count), np.int32)
        sizes = self.width, limits, most_frequent, row_count
        arrays = models, lows, highs, frequent, counts, values, row_indices, ties
        rows.call("count_near_limits", *sizes, *arrays)
        bracket_counts = []
        for i, (above, inside, nonzero, collected) in enumerate(counts.tolist()):
            # The memory is used again by the next call, and what was collected stays.
            kept = values[i, :collected].copy(), row_indices[i, :collected].copy()
            tie_counts = ties[i, : len(self.brackets[i].frequent)]
            bracket_counts.append(BracketCount(above, inside, nonzero, *kept, tie_counts))
        return bracket_counts


def _count(patterns: np.ndarray, bracket: Bracket, width: int) -> BracketCount:
    """Count flat bit patterns above and inside a bracket, with NumPy, which is faster than torch here."""
    unsigned = np.dtype(f"u{patterns.itemsize}").type
    # Values below wrap around to large ones, so that one comparison finds what is inside.
    shifted = patterns.view(unsigned) - unsigned(bracket.low)
    positions = np.flatnonzero(shifted <= unsigned(bracket.high - bracket.low))
    values = patterns[positions]
    row_indices = (positions // width).astype(np.int32)
    # The number of the frequent pattern that a value equals, from 1; 0 for the others.
    frequent_index = np.zeros(len(positions), np.int32)
    for number, pattern in enumerate(bracket.frequent, 1):
        frequent_index += np.int32(number) * (values == pattern)
    count = -(-len(patterns) // width)
    cells = (len(bracket.frequent) + 1) * count
    ties = np.bincount(frequent_index * count + row_indices, minlength=cells).reshape(-1, count)[1:]
    is_infrequent = frequent_index == 0
    return BracketCount(
        int(np.count_nonzero(patterns > bracket.high)),
        len(positions),
        int(np.count_nonzero(patterns)),
        values[is_infrequent],
        row_indices[is_infrequent],
        ties,
    )
