"""The core of an old corpus, to train on together with a new corpus."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import DataError, Pool, PositiveShare, Sampler, make_seed, suggest

from emberge_boom.bagging import count_drawn, draw_rows


@dataclass(frozen=True, kw_only=True)
class CoreSubset(Sampler):
    """All rows of `new` datasets and a random share of the old ones (BOOM, arXiv:2602.05787).

    A model is trained on these rows and merged with the model that was trained on the old data D. The merge
    learns the new data D′ at a fraction of the cost of training on all data again: (|D′| + k|D|) / |D ∪ D′|,
    where k is `ratio`. Each old dataset keeps max(1, round(`ratio` · size)) rows. This
    sampler only selects rows: end the chain with a sampler that makes batches, such as `batch_shuffle`.

    Example:
        data: ./datasets.yaml
        sampler: [{core_subset: {new: [code], ratio: 0.4}}, batch_shuffle]
    """

    new: tuple[str, ...]
    """Names of the datasets that the old model has not seen; all others are old."""
    ratio: PositiveShare = 0.4

    def __post_init__(self) -> None:
        if not self.new:
            raise ValueError("new names the datasets that are kept whole, at least one")

    def select(self, pool: Pool, seed: int) -> Pool:
        """Return all new rows and a share of each old dataset's, drawn by seed, name and size.

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
        # The 0 in the seed is the number of the draw; there is one.
        core = {
            info: draw_rows(
                rows,
                make_seed(seed, "core", 0, info.name),
                0,
                count_drawn(len(rows), float(self.ratio)),
            )
            for info, rows in old_pool.items()
        }
        return {**pool, **core}
