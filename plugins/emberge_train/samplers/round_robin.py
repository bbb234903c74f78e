"""Datasets in turn, with equally many steps for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emberge import Batches, Pool, shuffled, stable_seed
from emberge.training import InTurn

from emberge_train.samplers.one_dataset import OneDataset


@dataclass(frozen=True, kw_only=True)
class RoundRobin(OneDataset):
    """Batches of each dataset in turn, so that all datasets get equally many steps.

    The order of the datasets is drawn for each epoch. `until` sets when the epoch ends: with `shortest` when
    any dataset runs out of batches, as with sentence-transformers' ROUND_ROBIN; with `longest` when the
    longest dataset was seen once, while shorter datasets are repeated with their rows in another order; with
    `all` when every dataset was seen once, while finished datasets are skipped. With `shortest` some rows of
    larger datasets are not used, different rows in each epoch.

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
