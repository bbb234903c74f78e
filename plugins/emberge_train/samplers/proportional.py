"""Datasets in proportion to a power of their sizes, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from emberge import Batches, PerDataset, Pool, Positive, make_seed

from emberge_train.samplers.batches import DatasetBatches, Shuffled
from emberge_train.samplers.one_dataset_samplers import OneDataset


@dataclass(frozen=True, kw_only=True)
class Proportional(OneDataset):
    """Batches of one dataset each, in random order, each dataset with a share of the epoch.

    The share of a dataset of n rows is w · n^(1/T) over the sum of this term for all datasets. `temperature`
    is T (temperature-scaled mixing: Raffel et al., 2020, arXiv:1910.10683; the power α = 1/T of Conneau &
    Lample, 2019, arXiv:1901.07291): with 1 shares follow the sizes, with 2 their square roots, and the higher
    T, the more even the shares. w is `weight`, by task or dataset, times the `weight` of the data's own
    entry. Shares are of examples, so that a smaller batch size gives a task more steps.

    An epoch has about as many examples as there are rows, and at least one batch of each dataset. Shares are
    not drawn at random: each is met to within one batch. Rows of a dataset are repeated, in another order,
    only after each row was used once, except for a dropped tail. Without weights it is nearly
    `batch_shuffle`, but `batch_shuffle` takes each row exactly once an epoch.

    Example:
        data: ./datasets.yaml
        sampler: {proportional: {weight: {by_task: {sts: 2}}}}
    """

    weight: PerDataset[Positive] = field(default_factory=lambda: PerDataset(default=1.0))
    temperature: Positive = 1.0

    def compute_shares(self, datasets: Sequence[DatasetBatches]) -> list[float]:
        """Return each dataset's share; the shares sum to 1."""
        sizes = [len(dataset.rows) for dataset in datasets]
        weights = [self.weight.of(d.info.name, d.info.task) for d in datasets]
        # Sizes are divided by the largest, so that no power overflows.
        parts = [
            (size / max(sizes)) ** (1 / self.temperature)
            * (dataset.info.weight * (1.0 if weight is None else weight))
            for size, dataset, weight in zip(sizes, datasets, weights, strict=True)
        ]
        return [part / sum(parts) for part in parts]

    def count_batches(self, datasets: Sequence[DatasetBatches]) -> list[int]:
        """Return the number of batches of each dataset in an epoch."""
        examples = sum(len(dataset.rows) for dataset in datasets)
        shares = self.compute_shares(datasets)
        sizes = [min(dataset.size, len(dataset.rows)) for dataset in datasets]
        return [max(1, round(s * examples / n)) for s, n in zip(shares, sizes, strict=True)]

    def batches(self, pool: Pool, seed: int) -> Batches:
        datasets = self.cut_dataset_batches(pool, seed)
        resized = [
            dataset.with_count(n)
            for dataset, n in zip(datasets, self.count_batches(datasets), strict=True)
        ]
        return Shuffled(resized, make_seed(seed, "batches"))
