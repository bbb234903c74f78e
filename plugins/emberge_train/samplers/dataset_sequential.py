"""One dataset after another, in an order of tasks."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Batches, DataError, Pool, shuffled, stable_seed, suggest
from emberge.training import DatasetBatches, InOrder

from emberge_train.samplers.one_dataset import TaskOrder


@dataclass(frozen=True, kw_only=True)
class DatasetSequential(TaskOrder):
    """Batches of one dataset after another, ordered by task (BOOM, arXiv:2602.05787).

    Tasks come in `order`, by default classification, clustering, pair classification, sts and then retrieval
    with reranking; inside a task the datasets come in random order, and so do the rows inside a dataset.
    `pin_last` names datasets that come at the very end, in the order given: BOOM ends with MS MARCO document
    and MS MARCO passage. Each row comes once an epoch.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: {dataset_sequential: {pin_last: [nq]}}
    """

    pin_last: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        repeated_names = sorted({name for name in self.pin_last if self.pin_last.count(name) > 1})
        if repeated_names:
            raise ValueError(f"pin_last names '{repeated_names[0]}' twice")

    def batches(self, pool: Pool, seed: int) -> Batches:
        """Return the batches of all datasets, one dataset after another.

        Raises:
            DataError: if `pin_last` names no dataset, or a dataset's task is not in `order`.
        """
        names = [info.name for info in pool]
        for name in self.pin_last:
            if name not in names:
                hint = suggest(name, names) or f"; there are {', '.join(names)}"
                raise DataError(f"pin_last names '{name}', which is no dataset here{hint}")
        datasets = self.batches_by_dataset(pool, seed)
        pinned = {
            dataset.info.name: dataset for dataset in datasets if dataset.info.name in self.pin_last
        }
        free = [dataset for dataset in datasets if dataset.info.name not in pinned]
        unpinned: list[DatasetBatches] = []
        for number, group in enumerate(self.by_task(free)):
            unpinned += [
                group[i] for i in shuffled(len(group), stable_seed(seed, "datasets", number))
            ]
        return InOrder(unpinned + [pinned[name] for name in self.pin_last if name in pinned])
