"""Chunks of a batch: texts of like length together, under a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# A chunk costs about as much beside its tokens as the budget divided by this, in tokens.
OVERHEAD_SHARE = 32
# Beyond this many texts lengths are so close that the best cuts are no better than full chunks.
TEXTS_WEIGHED = 4096


def chunks(lengths: Sequence[int] | NDArray[np.int64], budget: int) -> list[NDArray[np.int64]]:
    """Cut texts into chunks whose padded size, rows times longest, stays within `budget` tokens.

    Longest first, so that a device meets its largest chunk at once; ties keep their order. The cuts are those
    that make padding and the chunks' own overhead least. A text longer than the budget is a chunk of its own.
    """
    sizes = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    order = np.argsort(-sizes, kind="stable")
    falling = sizes[order]
    weighed = len(order) <= TEXTS_WEIGHED
    starts = _best_starts(falling, budget) if weighed else _full_starts(falling, budget)
    return [order[a:b] for a, b in pairwise([*starts, len(order)])]


def _full_starts(falling: NDArray[np.int64], budget: int) -> list[int]:
    starts, start = [], 0
    while start < len(falling):
        starts.append(start)
        start += max(1, budget // int(falling[start]))
    return starts


def _best_starts(falling: NDArray[np.int64], budget: int) -> list[int]:
    """Return the starts of the cheapest chunks, by dynamic programming over prefixes."""
    count, overhead = len(falling), budget // OVERHEAD_SHARE
    cost = np.full(count + 1, np.iinfo(np.int64).max // 2, np.int64)
    cost[0] = 0
    came = np.zeros(count + 1, np.int64)
    for start in range(count):
        longest = int(falling[start])
        rows = np.arange(1, min(count - start, max(1, budget // longest)) + 1)
        here = cost[start] + overhead + longest * rows
        ends = slice(start + 1, start + 1 + len(rows))
        better = here < cost[ends]
        cost[ends][better] = here[better]
        came[ends][better] = start
    starts, end = [], count
    while end > 0:
        end = int(came[end])
        starts.append(end)
    return starts[::-1]


def equal_chunks(kept: Sequence[NDArray[np.bool_]], budget: int) -> list[NDArray[np.int64]]:
    """Cut texts into chunks with the same mask of tokens, so of one length, within `budget` tokens.

    Most tokens kept come first.
    """
    alike: dict[bytes, list[int]] = {}
    for place, mask in enumerate(kept):
        alike.setdefault(mask.tobytes(), []).append(place)
    pieces = []
    for places in sorted(alike.values(), key=lambda some: -int(kept[some[0]].sum())):
        rows = max(1, budget // max(1, len(kept[places[0]])))
        pieces += [places[start : start + rows] for start in range(0, len(places), rows)]
    return [np.asarray(piece, np.int64) for piece in pieces]


def padded_tokens(lengths: NDArray[np.int64], pieces: Sequence[NDArray[np.int64]]) -> int:
    """Return the number of tokens that the encoder computes for these chunks, padding included."""
    return sum(len(piece) * int(lengths[piece].max()) for piece in pieces if len(piece))
