"""Batch-level shuffling: batches of one dataset each, in random order."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Batches, Pool, stable_seed
from emberge.training import Shuffled

from emberge_train.samplers.one_dataset import OneDataset


@dataclass(frozen=True, kw_only=True)
class BatchShuffle(OneDataset):
    """Batches of one dataset each; the batches of all datasets are shuffled together.

    One optimizer step sees one dataset, so in-batch negatives stay within a task (BOOM's BLS,
    arXiv:2602.05787; CoDiEmb's sampler, arXiv:2508.11442; first Liu et al., 2019, arXiv:1901.11504). Each row
    comes once an epoch, so the number of steps of a dataset is its number of rows over its `batch_size`. A
    smaller `batch_size` gives a task more steps, which is how CoDiEmb balances retrieval and similarity. A
    dataset's `weight` is ignored; `proportional` and `temperature` use it.

    Example:
        trained:
          train:
            model: ./base
            data: ./pairs.jsonl
            loss: infonce
            sampler: {batch_shuffle: {batch_size: 64}}
    """

    def batches(self, pool: Pool, seed: int) -> Batches:
        return Shuffled(self.batches_by_dataset(pool, seed), stable_seed(seed, "batches"))
