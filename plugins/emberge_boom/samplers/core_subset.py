"""The core of an old corpus, to train on together with a new corpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from emberge import (
    DataError,
    DatasetInfo,
    Pool,
    PositiveShare,
    Rows,
    Sampler,
    WholeNumber,
    stable_seed,
    suggest,
)
from emberge.training import RowSubset, take_rows

from emberge_boom.samplers.bagging import count_of, in_order, require_share


@dataclass(frozen=True, kw_only=True)
class CoreSubset(Sampler):
    """All rows of `new` datasets and a random share of the old ones (BOOM, arXiv:2602.05787).

    A model is trained on these rows and merged with the model that was trained on the old data D. The merge
    learns the new data D′ at a fraction of the cost of training on all data again: (|D′| + k|D|) / |D ∪ D′|,
    where k is `ratio`. Each old dataset keeps max(1, round(`ratio` · size)) rows. `of: corpus` instead draws
    this share from all old rows together, so that a dataset may keep a little more or less; the row numbers
    of the core are then in memory. A different `draw` gives a different core. This sampler only selects rows:
    end the chain with a sampler that makes batches, such as `batch_shuffle`.

    Example:
        updated:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: [{core_subset: {new: [code], ratio: 0.4}}, batch_shuffle]
    """

    new: tuple[str, ...]
    """Names of the datasets that the old model has not seen; all others are old."""
    ratio: PositiveShare = 0.4
    of: Literal["dataset", "corpus"] = "dataset"
    draw: WholeNumber = 0

    def __post_init__(self) -> None:
        require_share(self.ratio)
        if not self.new:
            raise ValueError("new names the datasets that are kept whole, at least one")

    def select(self, pool: Pool, seed: int) -> Pool:
        """Return all new rows and the core, drawn by seed, draw and the old datasets' names and sizes.

        Raises:
            DataError: if `new` names a dataset that does not exist, or if no dataset is old.
        """
        names = [info.name for info in pool]
        for name in self.new:
            if name not in names:
                hint = suggest(name, names) or f"; there are {', '.join(names)}"
                raise DataError(f"core_subset: new names '{name}', which is no dataset here{hint}")
        old_pool = {
            info: rows for info, rows in pool.items() if info.name not in self.new and len(rows)
        }
        if not old_pool:
            raise DataError("core_subset: every dataset is new; name the old data among the data")
        key = (seed, "core", self.draw)
        core = (
            self._draw_of_each(old_pool, key)
            if self.of == "dataset"
            else self._draw_of_all(old_pool, key)
        )
        return {**pool, **core}

    def _draw_of_each(self, old_pool: Pool, key: tuple[object, ...]) -> Mapping[DatasetInfo, Rows]:
        return {
            info: in_order(
                RowSubset(
                    rows, stable_seed(*key, info.name), 0, count_of(len(rows), float(self.ratio))
                ),
                rows,
            )
            for info, rows in old_pool.items()
        }

    def _draw_of_all(self, old_pool: Pool, key: tuple[object, ...]) -> Mapping[DatasetInfo, Rows]:
        return dict(self._cut(old_pool, stable_seed(*key, *(info.name for info in old_pool))))

    def _cut(self, old_pool: Pool, seed: int) -> Iterator[tuple[DatasetInfo, Rows]]:
        """Split sorted row numbers, counted over all old datasets, into the row numbers of each dataset."""
        import numpy as np

        ends = np.cumsum([len(rows) for rows in old_pool.values()])
        total = int(ends[-1])
        drawn_rows = RowSubset(range(total), seed, 0, count_of(total, float(self.ratio)))
        places = np.sort(np.asarray(drawn_rows, dtype=np.int64))
        cuts = np.split(places, np.searchsorted(places, ends[:-1]))
        for (info, rows), cut_numbers, end in zip(old_pool.items(), cuts, ends, strict=True):
            yield info, take_rows(rows, cut_numbers - (int(end) - len(rows)))
