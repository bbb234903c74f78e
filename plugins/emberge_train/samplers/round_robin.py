"""Datasets in turn, with equally many steps for each."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Batches, Pool, shuffled, stable_seed
from emberge.training import InTurn

from emberge_train.samplers.one_dataset import OneDataset


@dataclass(frozen=True, kw_only=True)
class RoundRobin(OneDataset):
    """Batches of each dataset in turn, so that all datasets get equally many steps.

    The order of the datasets is drawn for each epoch, which ends when any dataset runs out of batches, as
    with sentence-transformers' ROUND_ROBIN. Some rows of larger datasets are not used, different rows in each
    epoch.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: round_robin
    """

    def batches(self, pool: Pool, seed: int) -> Batches:
        datasets = self.batches_by_dataset(pool, seed)
        datasets = [datasets[i] for i in shuffled(len(datasets), stable_seed(seed, "turns"))]
        count = min(len(dataset) for dataset in datasets)
        return InTurn([dataset.of_length(count) for dataset in datasets])
