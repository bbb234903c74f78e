"""Datasets in turn: as many steps for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emberge import Batches, Pool, shuffled, stable_seed
from emberge.training import InTurn

from emberge_train.samplers.one_dataset import OneDataset


@dataclass(frozen=True, kw_only=True)
class RoundRobin(OneDataset):
    """Batches of each dataset in turn, so that each gets as many steps.

    The turns go round in an order that is drawn for the epoch. `until` is when it ends: with the first
    dataset that has no more (`shortest`, as sentence-transformers' ROUND_ROBIN does), when the longest was
    seen once, shorter ones beginning again with their rows in another order (`longest`), or when each was
    seen once, those that are through being passed over (`all`). Under `shortest` rows of larger datasets
    are left out, others in each epoch.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: {round_robin: {until: longest}}
    """

    until: Literal["shortest", "longest", "all"] = "shortest"

    def batches(self, pool: Pool, seed: int) -> Batches:
        datasets = self.batches_by_dataset(pool, seed)
        datasets = [datasets[i] for i in shuffled(len(datasets), stable_seed(seed, "turns"))]
        if self.until != "all":
            count = (min if self.until == "shortest" else max)(len(dataset) for dataset in datasets)
            datasets = [dataset.of_length(count) for dataset in datasets]
        return InTurn(datasets)
