"""Bags: random shares of every dataset; each member of an ensemble trains on its own bag."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from emberge import (
    DatasetInfo,
    PerDataset,
    Pool,
    PositiveShare,
    Rows,
    Sampler,
    WholeNumber,
    stable_seed,
)
from emberge.training import RowSubset, take_rows

# Rows of a dataset up to which its bag is an array, in order.
SORTED_UP_TO = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Bagging(Sampler):
    """A random share of every dataset, drawn once for the whole training (BOOM, arXiv:2602.05787).

    `ratio` is a share above 0 and up to 1, and may differ by task or dataset (`{default: 0.4, by_task: {sts:
    1}}`); datasets without a ratio are kept whole. Each dataset keeps max(1, round(ratio · size)) rows, drawn
    without replacement. Members of an ensemble that have the same ratio differ by `draw`. `part: first` and
    `part: rest` split every dataset in two by its ratio, so that two members share no row and together have
    all rows. This sampler only selects rows: end the chain with a sampler that makes batches, such as
    `batch_shuffle`.

    Example:
        members:
          foreach: {draw: [1, 2, 3, 4]}
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: [{bagging: {ratio: 0.4, draw: $draw}}, batch_shuffle]
    """

    ratio: PerDataset[PositiveShare] = field(default_factory=lambda: PerDataset(default=1.0))
    draw: WholeNumber = 0
    part: Literal["first", "rest"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.ratio, PerDataset):
            # A bare number is the default, in Python as in a recipe.
            object.__setattr__(self, "ratio", PerDataset(default=self.ratio))

    def select(self, pool: Pool, seed: int) -> Pool:
        """Return the bag, which depends on seed, ratio, draw and the dataset's name alone.

        Parts, of whatever ratio, are slices of one random order. Row numbers of a large
        dataset's bag are computed one by one when they are read.
        """
        return {info: self._draw_bag(info, rows, seed) for info, rows in pool.items()}

    def _draw_bag(self, info: DatasetInfo, rows: Rows, seed: int) -> Rows:
        size = len(rows)
        if not size:
            return rows
        ratio = self.ratio.of(info.name, info.task)
        ratio = 1.0 if ratio is None else float(ratio)
        key: tuple[Any, ...] = (seed, "bag", self.draw, info.name)
        if self.part is None:
            bag = RowSubset(rows, stable_seed(*key, ratio), 0, count_of(size, ratio))
        else:
            first_count = math.floor(round(size * ratio, 9))  # 0.29 · 100 is 28.999… in binary
            start, stop = (0, first_count) if self.part == "first" else (first_count, size)
            bag = RowSubset(rows, stable_seed(*key), start, stop)
        return in_order(bag, rows)


def count_of(size: int, ratio: float) -> int:
    """Return the number of rows to draw from `size`: at least one, halves rounded to even."""
    return max(1, round(ratio * size))


def in_order(bag: RowSubset, rows: Rows) -> Rows:
    """Return the bag, sorted in the order of its dataset if sorting takes little memory."""
    import numpy as np

    if len(rows) > SORTED_UP_TO:
        return bag
    return take_rows(rows, np.sort(bag.places(np.arange(len(bag), dtype=np.int64))))
