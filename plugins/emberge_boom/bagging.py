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
    draw_order,
    make_seed,
)
from emberge.contracts import take_rows


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

        Parts, of whatever ratio, are slices of one random order.
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
            return draw_rows(rows, make_seed(*key, ratio), 0, count_drawn(size, ratio))
        first_count = math.floor(round(size * ratio, 9))  # 0.29 · 100 is 28.999… in binary
        start, stop = (0, first_count) if self.part == "first" else (first_count, size)
        return draw_rows(rows, make_seed(*key), start, stop)


def count_drawn(size: int, ratio: float) -> int:
    """Return the number of rows to draw from `size`: at least one, halves rounded to even."""
    return max(1, round(ratio * size))


def draw_rows(rows: Rows, seed: int, start: int, stop: int) -> Rows:
    """Return the rows at `start` to `stop` - 1 of a random order, in the order of their dataset."""
    import numpy as np

    return take_rows(rows, np.sort(draw_order(len(rows), seed)[start:stop]))
