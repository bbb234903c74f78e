"""One task after another, the datasets of a task shuffled together."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Batches, Pool, stable_seed
from emberge.training import InOrder, Shuffled

from emberge_train.samplers.one_dataset import TaskOrder


@dataclass(frozen=True, kw_only=True)
class TaskSequential(TaskOrder):
    """Batches grouped by task, one task after another; inside a task they are shuffled.

    Tasks come in `order`, by default classification, clustering, pair classification, sts and then retrieval
    with reranking, and the batches of each task are shuffled as by `batch_shuffle` (BOOM, arXiv:2602.05787).
    Each row comes once an epoch.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: {task_sequential: {order: [sts, retrieval]}}
    """

    def batches(self, pool: Pool, seed: int) -> Batches:
        """Return the batches of all tasks, one task after another.

        Raises:
            DataError: if a dataset's task is not in `order`.
        """
        groups = self.by_task(self.batches_by_dataset(pool, seed))
        return InOrder(
            [Shuffled(group, stable_seed(seed, "task", i)) for i, group in enumerate(groups)]
        )
