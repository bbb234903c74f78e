"""Datasets in turn: as many steps for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emberge import Batches, Interleaved, Pool, shuffled, stable_seed

from emberge_train.samplers.one_dataset import OneDataset


@dataclass(frozen=True, kw_only=True)
class RoundRobin(OneDataset):
    """Take a batch of each dataset in turn, so that each gets as many steps.

    The turns go round in an order that is drawn for the epoch. `until` says when it ends: with the first
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
        lanes = self.lanes(pool, seed)
        lanes = [lanes[i] for i in shuffled(len(lanes), stable_seed(seed, "turns"))]
        if self.until != "all":
            count = (min if self.until == "shortest" else max)(len(lane) for lane in lanes)
            lanes = [lane.of_length(count) for lane in lanes]
        return Interleaved(lanes)
