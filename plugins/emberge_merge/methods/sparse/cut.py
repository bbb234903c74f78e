"""The k-th largest of many magnitudes: bracketed by a sample, found by counts, ties kept in order.

Magnitudes are handled as bit patterns: integers that have the same order as the magnitudes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from emberge.numerics import RUN_LENGTH, map_array

if TYPE_CHECKING:
    import torch
    from emberge.numerics import KernelIntegers
    from torch import Tensor

# Collected values that are kept; of more the blocks are read again and counted in bins.
_MOST_COLLECTED_VALUES = 1 << 23
# Bytes from which pieces are no longer put together: copies of all that was counted would double the memory.
_LARGE_PIECE_BYTES = 1 << 20

_BINS = 1 << 16
# Standard deviations of a sampled rank within which the limit is first looked for.
_SLACK = 4.5
# Up to this many values are collected where they are expected inside the bracket; more are counted in bins.
_SAMPLED_VALUES = 1 << 22
# A value that is in the sample at least this often is counted row by row; the number of them at most.
_FREQUENT_OCCURRENCES, _MOST_FREQUENT_VALUES = 8, 8
_BEYOND_ALL_ROWS = 1 << 60


class Limit(NamedTuple):
    """A limit as a bit pattern: larger magnitudes are kept, and of equal magnitudes the first in the tensor.

    Equal magnitudes are kept in all rows that begin before element `row` of the tensor; from there on,
    `quota` of them are kept.
    """

    pattern: int
    row: int = _BEYOND_ALL_ROWS
    quota: int = 0

    def as_kernel_integers(self) -> KernelIntegers:
        """Return the limit as the kernels read it."""
        # No float32 has a larger pattern than 2³¹ - 1, and the kernels look for one more than the limit's.
        return min(self.pattern, (1 << 31) - 2), self.row, self.quota

    def keep(self, values: Tensor, into: Tensor, start: int) -> None:
        """Write the flat values that reach the limit, and zeros for other values; `into` may be `values`.

        `start` is the position of the first value.
        """
        if self == UNREACHED_LIMIT:
            into.zero_()
            return
        split = self._count_through_last_kept_tie(values, start)
        if split:
            _keep_from(values[:split], into[:split], self.pattern)
        if split < values.numel():
            _keep_from(values[split:], into[split:], self.pattern + 1)

    def _count_through_last_kept_tie(self, values: Tensor, start: int) -> int:
        """Return the number of a block's values up to and including the last kept tie."""
        at = max(0, min(self.row - start, values.numel()))
        if self.row < start or at == values.numel():
            return at
        ties = np.flatnonzero(view_bit_patterns(values[at:]) == self.pattern)
        return at + int(ties[self.quota - 1]) + 1


UNREACHED_LIMIT = Limit((1 << 63) - 2, -1)
"""The limit that no magnitude reaches, not even infinity or NaN."""


class Bracket(NamedTuple):
    """The range of bit patterns, `low` to `high`, that contains the limit of model number `model`.

    In this range, the `frequent` patterns are counted row by row; all others are collected.
    """

    model: int
    low: int
    high: int
    frequent: Sequence[int] = ()


class BracketCount(NamedTuple):
    """Counts of magnitudes `above` and `inside` a bracket, and of nonzero magnitudes.

    `values` are the infrequent patterns inside, and `row_indices` the row of each, counted from the block's
    first row. `ties` [frequent, rows] counts each frequent pattern in each row.
    """

    above: int
    inside: int
    nonzero: int
    values: np.ndarray
    row_indices: np.ndarray
    ties: np.ndarray


@dataclass(frozen=True, slots=True)
class Cut:
    """Bracket [`low`, `high`] that contains the limit of one ranking: the k-th largest bit pattern.

    The `frequent` values in the bracket occur many times and are counted row by row. The bracket's other
    values are collected together with their rows, or counted in bins if they are too many. `final_limit` is
    None until the limit is known. If `keep_count` is not `is_exact`, but estimated from the sample, zeros do
    not count.
    """

    keep_count: int
    total: int
    is_exact: bool = True
    low: int = 0
    high: int = 0
    frequent: tuple[int, ...] = ()
    collect: bool = True
    final_limit: Limit | None = None

    @classmethod
    def begin(cls, patterns: np.ndarray, keep: int, total: int, *, is_exact: bool = True) -> Cut:
        """Build the cut from sampled patterns: final if all were sampled in order, else a bracket."""
        if len(patterns) == total and is_exact and 0 < keep < total:
            return cls._of_all_values(patterns, keep)
        cut = cls(keep, total, is_exact=False)
        cut = cut.with_count(keep) if is_exact or keep == total else cut
        return cut if cut.is_final else cut._estimate_bracket(patterns)

    def _estimate_bracket(self, patterns: np.ndarray) -> Cut:
        """Return the cut with the bracket in which sampled patterns let the limit be expected."""
        size, total = len(patterns), self.total
        rank, ordered = self.keep_count * size // total, np.sort(patterns)
        # A limit outside costs passes, never exactness.
        slack = int(_SLACK * (_estimate_rank_deviation(patterns, rank, ordered[-1 - rank]) + 1))
        first, end = max(0, size - 1 - rank - slack), min(size, size - rank + slack)
        candidates, occurrences = np.unique(ordered[first:end], return_counts=True)
        least = 0 if self.is_exact else 1
        low = int(candidates[0]) if first else 0
        high = int(candidates[-1]) if end < size else int(np.iinfo(patterns.dtype).max)
        frequent_values = candidates[np.argsort(-occurrences)][
            : int(np.count_nonzero(occurrences >= _FREQUENT_OCCURRENCES))
        ].tolist()
        return dataclasses.replace(
            self,
            low=max(low, least),
            high=max(high, least),
            frequent=tuple(
                [pattern for pattern in frequent_values if pattern >= least][:_MOST_FREQUENT_VALUES]
            ),
            collect=2 * slack * total // size <= _SAMPLED_VALUES,
        )

    @classmethod
    def _of_all_values(cls, patterns: np.ndarray, keep: int) -> Cut:
        """Build the final cut from the patterns of all values in their order."""
        size = len(patterns)
        limit = int(np.partition(patterns, size - keep)[size - keep])
        count_above = int(np.count_nonzero(patterns > limit))
        last_index = int(np.flatnonzero(patterns == limit)[keep - count_above - 1])
        return cls(keep, size, final_limit=Limit(limit, last_index, 1))

    def with_count(self, keep: int) -> Cut:
        """Return the cut with the number of values to keep; it is final if all or none are kept."""
        limit = {self.total: Limit(0), 0: UNREACHED_LIMIT}.get(keep, self.final_limit)
        return dataclasses.replace(self, keep_count=keep, is_exact=True, final_limit=limit)

    @property
    def is_final(self) -> bool:
        """True if the limit is known and no further pass is needed."""
        return self.final_limit is not None

    @property
    def shift(self) -> int:
        """The number of low bits that one bin unites."""
        return max(0, (self.high - self.low).bit_length() - _BINS.bit_length() + 1)

    def find_bracket(self, model: int) -> Bracket:
        """Return the bracket in which the magnitudes of a model, given by its number, are counted."""
        return Bracket(model, self.low, self.high, self.frequent)

    def tally(self, bracket_count: BracketCount, start: int, size: int, width: int) -> Tally:
        """Return the tally of a block of `size` values in rows of `width`, from flat index `start` on."""
        row_starts = np.arange(start, start + size, width)
        ties = bracket_count.ties.astype(CollectedValues.choose_count_dtype(width))
        # Zeros are among what stays unless their number decides how much that is.
        nonzero = size if self.is_exact else bracket_count.nonzero
        values, row_indices = bracket_count.values, bracket_count.row_indices
        piece = CollectedValues(values, row_indices, ties, row_starts)
        return Tally(bracket_count.above, bracket_count.inside, nonzero, [piece])

    def count_in_bins(self, patterns: np.ndarray) -> Tally:
        """Count a block's bit patterns by ranges of values, if the bracket has too many to collect."""
        unsigned = np.dtype(f"u{patterns.itemsize}").type
        # Values below wrap around to large ones, so that one comparison finds what is inside.
        shifted = patterns.view(unsigned) - unsigned(self.low)
        values = patterns[shifted <= unsigned(self.high - self.low)]
        last_bin = (self.high - self.low) >> self.shift
        bins = np.bincount((values - self.low) >> self.shift, minlength=last_bin + 1)
        count_above = int(np.count_nonzero(patterns > self.high))
        nonzero = len(patterns) if self.is_exact else int(np.count_nonzero(patterns))
        return Tally(count_above, len(values), nonzero, bins=bins)

    def narrow(self, tally: Tally) -> Cut:
        """Return the cut after a whole pass was counted: with a narrower bracket, or final."""
        if tally.above >= self.keep_count:
            most = (1 << (63 if self.high >= 1 << 31 else 31)) - 1
            return self._set_range(self.high + 1, most)
        if tally.above + tally.inside < self.keep_count:
            return self._set_range(0, self.low - 1)
        if tally.bins is not None:
            return self._enter_bin(tally.above, tally.bins)
        if tally.pieces is None:
            return self._set_range(self.low, self.high)
        limit, quota = self._find_limit(tally.pieces, self.keep_count - tally.above)
        by_row = np.concatenate(
            [piece.count_by_row(limit, self.frequent) for piece in tally.pieces]
        )
        cumulative_ties = by_row.cumsum()
        at = int(np.searchsorted(cumulative_ties, quota))
        if quota == cumulative_ties[-1]:  # all ties are kept
            return dataclasses.replace(self, final_limit=Limit(limit))
        quota -= int(cumulative_ties[at] - by_row[at])
        begins = np.concatenate([piece.row_starts for piece in tally.pieces])
        return dataclasses.replace(self, final_limit=Limit(limit, int(begins[at]), quota))

    def _set_range(self, low: int, high: int) -> Cut:
        return dataclasses.replace(self, low=low, high=high, frequent=(), collect=False)

    def _enter_bin(self, count_above: int, bins: np.ndarray) -> Cut:
        counts_from_bin = count_above + bins[::-1].cumsum()[::-1]
        bin_index = int(np.flatnonzero(counts_from_bin >= self.keep_count)[-1])
        low = self.low + (bin_index << self.shift)
        high = min(self.high, low + (1 << self.shift) - 1)
        if high - low < _MOST_FREQUENT_VALUES:
            patterns = tuple(range(low, high + 1))
            return dataclasses.replace(self, low=low, high=high, frequent=patterns, collect=True)
        return dataclasses.replace(
            self, low=low, high=high, collect=bool(bins[bin_index] <= _SAMPLED_VALUES)
        )

    def _find_limit(self, pieces: Sequence[CollectedValues], keep: int) -> tuple[int, int]:
        """Return the limit and the number of ties kept at it, if `keep` of the values inside are kept."""
        infrequent_values = np.concatenate([piece.values for piece in pieces])
        counts = np.sum([piece.ties.sum(1) for piece in pieces], axis=0).tolist()
        for pattern, count in sorted(zip(self.frequent, counts, strict=True), reverse=True):
            larger_count = int(np.count_nonzero(infrequent_values > pattern))
            if larger_count >= keep:
                break
            if larger_count + count >= keep:
                return pattern, keep - larger_count
            keep -= count
        limit = int(
            np.partition(infrequent_values, len(infrequent_values) - keep)[
                len(infrequent_values) - keep
            ]
        )
        return limit, keep - int(np.count_nonzero(infrequent_values > limit))

    @property
    def limit(self) -> Limit:
        """The limit for a block's values, once the cut is final."""
        if self.final_limit is None:
            raise AssertionError("the limit was not final in as many passes as it can take")
        return self.final_limit


@dataclass(frozen=True, slots=True)
class CollectedValues:
    """Values of consecutive blocks inside a bracket: the infrequent ones listed, the frequent ones counted.

    `values` are the infrequent values, and `row_indices` the row of each, counted from the first of these
    rows. `ties` [frequent, rows] counts each frequent value in each row. `row_starts` has the flat index at
    which each row begins.
    """

    values: np.ndarray
    row_indices: np.ndarray
    ties: np.ndarray
    row_starts: np.ndarray

    @staticmethod
    def choose_count_dtype(width: int) -> np.dtype[Any]:
        """Return the smallest type that counts up to all values of a row."""
        return np.min_scalar_type(width)

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(
            one.nbytes for one in (self.values, self.row_indices, self.ties, self.row_starts)
        )

    def count_by_row(self, limit: int, frequent: Sequence[int]) -> np.ndarray:
        """Return how many values equal a limit in each row."""
        if limit in frequent:
            ties: np.ndarray = self.ties[frequent.index(limit)]
            return ties
        return np.bincount(self.row_indices[self.values == limit], minlength=len(self.row_starts))


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of blocks for one ranking: the values `above` the bracket, and those `inside` it.

    `pieces` have the collected values. They are None if there are too many, or if `bins` count the values
    inside instead. `nonzero` is the number of values that are not zero.
    """

    above: int
    inside: int
    nonzero: int
    pieces: Sequence[CollectedValues] | None = None
    bins: np.ndarray | None = None

    @classmethod
    def union(cls, tallies: Sequence[Tally]) -> Tally:
        """Return the joint counts of several consecutive blocks."""
        bins = [tally.bins for tally in tallies if tally.bins is not None]
        piece_lists = [tally.pieces for tally in tallies if tally.pieces is not None]
        pieces = [piece for block_pieces in piece_lists for piece in block_pieces]
        fits_memory = (
            len(piece_lists) == len(tallies)
            and sum(len(piece.values) for piece in pieces) <= _MOST_COLLECTED_VALUES
        )
        return cls(
            sum(tally.above for tally in tallies),
            sum(tally.inside for tally in tallies),
            sum(tally.nonzero for tally in tallies),
            list(_join_small_pieces(pieces)) if fits_memory else None,
            np.sum(bins, axis=0) if bins else None,
        )


def _estimate_rank_deviation(values: np.ndarray, rank: int, pattern: int) -> float:
    """Return the standard deviation of a sampled pattern's rank, the number of sampled values above it.

    Neighbours are alike where some rows changed more than others, so the runs of the sample are compared.
    """
    size = len(values)
    variance = rank * (size - rank) / size
    if size >= 2 * RUN_LENGTH:
        above = (values[: size // RUN_LENGTH * RUN_LENGTH] > pattern).reshape(-1, RUN_LENGTH)
        counts = np.count_nonzero(above, axis=1)
        variance = max(variance, len(counts) * float(counts.var()))
    return math.sqrt(variance)


def copy_off_heap(values: np.ndarray) -> np.ndarray:
    """Return a copy of the array in memory outside the heap."""
    copy = map_array(values.shape, values.dtype)
    copy[...] = values
    return copy


def _join_small_pieces(pieces: Iterable[CollectedValues]) -> Iterator[CollectedValues]:
    """Yield the pieces, with small neighbours joined."""
    small_pieces: list[CollectedValues] = []
    for piece in pieces:
        if piece.nbytes >= _LARGE_PIECE_BYTES:
            yield from _join_pieces(small_pieces)
            small_pieces = []
            yield piece
        else:
            small_pieces.append(piece)
    yield from _join_pieces(small_pieces)


def _join_pieces(pieces: Sequence[CollectedValues]) -> Iterator[CollectedValues]:
    if len(pieces) < 2:
        yield from pieces
        return
    first_rows = np.cumsum([0, *(len(piece.row_starts) for piece in pieces)]).astype(np.int32)
    row_indices = [
        piece.row_indices + shift for piece, shift in zip(pieces, first_rows, strict=False)
    ]
    yield CollectedValues(
        copy_off_heap(np.concatenate([piece.values for piece in pieces])),
        copy_off_heap(np.concatenate(row_indices)),
        copy_off_heap(np.concatenate([piece.ties for piece in pieces], axis=1)),
        copy_off_heap(np.concatenate([piece.row_starts for piece in pieces])),
    )


def view_bit_patterns(values: Tensor | np.ndarray) -> np.ndarray:
    """Return the bit patterns of magnitudes, as integers that sort in the same order."""
    numbers = values if isinstance(values, np.ndarray) else values.cpu().numpy()
    magnitudes: np.ndarray = np.abs(numbers)
    return magnitudes.view(np.int32 if magnitudes.itemsize == 4 else np.int64)


def _read_magnitude(pattern: int, dtype: torch.dtype) -> float:
    """Return the magnitude whose bit pattern is `pattern`, as a number of a dtype."""
    whole, real = (np.int32, np.float32) if dtype.itemsize == 4 else (np.int64, np.float64)
    return float(whole(pattern).view(real))


def _keep_from(values: Tensor, into: Tensor, least: int) -> None:
    """Copy the values whose magnitude's bit pattern is at least `least`."""
    if least == 0:
        into.copy_(values)
    else:
        import torch

        just_below = _read_magnitude(least - 1, values.dtype)
        torch.ops.aten.hardshrink.out(values, just_below, out=into)
