"""Texts of a planned batch, drawn from its rows.

Each row of a batch has an anchor, p positives and n negatives. Four kinds of numbers lead from the row to
its embeddings, each but the first an array [b, 1 + p + n]:

    row of the dataset                          17
    │   ExampleTable.starts: the row's texts; p and n of them are drawn
    entry of the table, -1 for padding          [40, 42, 43]
    │   ExampleTable.entries: equal texts are one sequence
    sequence of token ids                       [8, 8, 31]
    │   sequences of the batch, numbered in the order in which the ranks encode them
    position among the batch's embeddings       [0, 0, 1]
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emberge.contracts import TokenisedText
from emberge.ranks import SINGLE_RANK, RankGroup, shard_rows
from emberge.seeds import draw_bits, make_seed
from emberge.training.batch_plan import PlannedBatch, PlannedPart
from emberge.training.example_table import ExampleTable


@dataclass(frozen=True)
class TextSampling:
    """Number of texts drawn from a row; rows with fewer texts repeat theirs."""

    positives: int = 1
    negatives: int = 7
    seed: int = 0


@dataclass(frozen=True, eq=False)
class DrawnPart:
    """Texts of the rows of one dataset: `entries` and `positions` as in the module's drawing.

    The columns after the anchor are `positives` positives, then the negatives.
    """

    planned: PlannedPart
    table: ExampleTable
    entries: NDArray[np.int64]
    positions: NDArray[np.int64]
    positives: int

    @functools.cached_property
    def sequences(self) -> NDArray[np.int64]:
        """Sequences of the table [b, 1 + p + n], -1 for padding."""
        return np.where(self.entries >= 0, self.table.entries[self.entries], -1)


@dataclass(frozen=True, eq=False)
class DrawnBatch:
    """Texts that this rank encodes, and the parts whose rows have them; `counts` are the ranks' texts."""

    texts: tuple[TokenisedText, ...]
    parts: tuple[DrawnPart, ...]
    counts: tuple[int, ...]
    ranks: RankGroup = SINGLE_RANK


def draw_batch(
    batch: PlannedBatch,
    tables: Mapping[str, ExampleTable],
    sampling: TextSampling,
    *,
    unique: bool,
    skips_anchors: bool = False,
    ranks: RankGroup = SINGLE_RANK,
) -> DrawnBatch:
    """Draw each row's texts; with `unique`, each distinct text of a rank is encoded once.

    With `skips_anchors` anchors are not encoded, as for an encoder of pairs, whose texts contain them. The
    drawn texts depend only on seed, epoch, dataset and row. Every rank draws all rows, because the number of
    a row's texts depends on the other rows of its batch.
    """
    parts = [_draw_part(part, tables[part.dataset], sampling, batch.epoch) for part in batch.parts]
    counts: list[int] = []
    texts: list[TokenisedText] = []
    for rank in range(ranks.size):
        numbered = _number_texts(parts, unique, skips_anchors, (rank, ranks.size), sum(counts))
        counts.append(len(numbered))
        if rank == ranks.rank:
            texts = [drawn.table.sequences[sequence] for drawn, sequence in numbered]
    return DrawnBatch(tuple(texts), tuple(parts), tuple(counts), ranks)


def _number_texts(
    parts: Sequence[DrawnPart],
    unique: bool,
    skips_anchors: bool,
    rank: tuple[int, int],
    start: int,
) -> list[tuple[DrawnPart, int]]:
    """Return the sequences that a rank encodes, at least one; write their positions, from `start` on."""
    texts: list[tuple[DrawnPart, int]] = []
    position_by_text: dict[tuple[str, int], int] = {}
    for drawn in parts:
        own_rows = shard_rows(len(drawn.positions), *rank)
        drawn.positions[own_rows] = start  # padding points at the first text, and is masked
        for (row, column), sequence in np.ndenumerate(drawn.sequences[own_rows]):
            if sequence < 0 or (skips_anchors and column == 0):
                continue
            key = (drawn.planned.dataset, int(sequence))
            if not unique or key not in position_by_text:
                position_by_text[key] = start + len(texts)
                texts.append((drawn, int(sequence)))
            drawn.positions[own_rows.start + row, column] = position_by_text[key]
    return texts or [(parts[0], int(parts[0].sequences[0, 0]))]


def _draw_part(
    part: PlannedPart, table: ExampleTable, sampling: TextSampling, epoch: int
) -> DrawnPart:
    rows = part.rows
    positives = min(sampling.positives, int(table.positive_counts[rows].max()))
    negatives = min(sampling.negatives, int(table.negative_counts[rows].max()))
    entries = np.full((len(rows), 1 + positives + negatives), -1, np.int64)
    for index, row in enumerate(rows):
        start, count = int(table.starts[row]), int(table.positive_counts[row])
        left = int(table.starts[row + 1]) - start - 1 - count
        entries[index, 0] = start
        key = (sampling.seed, "draw", part.dataset, epoch, int(row))
        for column_name, first, size, column, count_wanted in (
            ("positive", start + 1, count, 1, positives),
            ("negative", start + 1 + count, left, 1 + positives, negatives),
        ):
            chosen_entries = first + _choose_numbers(size, count_wanted, (*key, column_name))
            entries[index, column : column + len(chosen_entries)] = chosen_entries
    return DrawnPart(part, table, entries, np.zeros(entries.shape, np.int64), positives)


def _choose_numbers(size: int, want: int, key: Sequence[object]) -> NDArray[np.int64]:
    """Return `want` numbers below `size` without replacement; if `size` is less, numbers repeat."""
    if not size or not want:
        return np.zeros(0, np.int64)
    if size == want:
        return np.arange(size)
    repeats = math.ceil(want / size)
    bits = draw_bits(size * repeats, make_seed(*key))
    return np.asarray(np.argsort(bits, kind="stable")[:want] % size, np.int64)
