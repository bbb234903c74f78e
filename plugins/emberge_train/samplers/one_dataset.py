"""Base classes of samplers whose batches have one dataset each: batch sizes, and the order of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from emberge import (
    Count,
    DataError,
    Negatives,
    PerDataset,
    Pool,
    Sampler,
    TaskKind,
)
from emberge.contracts import Tail
from emberge.training import DatasetBatches, batches_by_dataset

# BOOM's order, in which reranking counts as retrieval; pair classification, which BOOM has not, is like sts.
BOOM_ORDER: tuple[TaskKind, ...] = (
    "classification",
    "clustering",
    "pair_classification",
    "sts",
    "retrieval",
)


@dataclass(frozen=True, kw_only=True)
class OneDataset(Sampler):
    """Batches of one dataset each.

    `batch_size` counts examples over all ranks and may differ by task or dataset. For datasets of single
    texts an example is a window of tokens; with `batch_tokens` their batches have about that many tokens
    instead. The rows that do not fill a last batch are dropped (`tail: drop`), filled up with rows from the
    start of the epoch's order (`wrap`), or make a smaller batch (`keep`). With `drop` a dataset smaller than
    one batch is not trained on at all: this gives a warning, or an error if no batch is left.
    """

    batch_size: PerDataset[Count] = field(default_factory=lambda: PerDataset(default=32))
    batch_tokens: PerDataset[Count] = field(default_factory=PerDataset)
    tail: Tail = "drop"

    def batches_by_dataset(
        self, pool: Pool, seed: int, *, stage: int = 0, negatives: Negatives = "auto"
    ) -> list[DatasetBatches]:
        """Return each dataset's batches.

        Raises:
            DataError: if a dataset has no batch size, or no dataset fills a batch.
        """
        return batches_by_dataset(
            pool,
            self.batch_size,
            self.tail,
            seed,
            batch_tokens=self.batch_tokens,
            stage=stage,
            negatives=negatives,
        )


@dataclass(frozen=True, kw_only=True)
class TaskOrder(OneDataset):
    """Batches grouped by task, one task after another.

    `order` names the kinds of task, first to last; reranking goes with retrieval unless it is named.
    """

    order: tuple[TaskKind, ...] = BOOM_ORDER

    def __post_init__(self) -> None:
        for task in self.order:
            if self.order.count(task) > 1:
                raise ValueError(f"order names {task} twice")

    def by_task(self, datasets: Sequence[DatasetBatches]) -> list[list[DatasetBatches]]:
        """Return the batches of each task's datasets, in the order of tasks.

        Raises:
            DataError: if a dataset's task is not in the order.
        """
        groups: dict[TaskKind, list[DatasetBatches]] = {task: [] for task in self.order}
        for dataset in datasets:
            task = dataset.info.task
            if task == "reranking" and task not in groups:
                task = "retrieval"
            if task not in groups:
                raise DataError(
                    f"dataset '{dataset.info.name}' is for {task}, which `order` does not name "
                    f"({', '.join(self.order)}); add it"
                )
            groups[task].append(dataset)
        return [group for group in groups.values() if group]
