"""Base classes of samplers whose batches have one dataset each: batch sizes, order of tasks, shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from emberge import (
    Batches,
    Count,
    DataError,
    Negatives,
    PerDataset,
    Pool,
    Positive,
    Sampler,
    TaskKind,
    stable_seed,
)
from emberge.contracts import Tail
from emberge.training import DatasetBatches, Shuffled, batches_by_dataset

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


@dataclass(frozen=True, kw_only=True)
class Shares(OneDataset):
    """Batches of one dataset each, in random order, each dataset with a share of the epoch.

    `weight` multiplies a dataset's share, by task or dataset, and so does the `weight` of the data's own
    entry. Shares are of examples, so that a smaller batch size gives a task more steps. An epoch has about as
    many examples as there are rows, and at least one batch of each dataset. Shares are not drawn at random:
    each is met to within one batch. Rows of a dataset are repeated, in another order, only after each row was
    used once, except for a dropped tail.
    """

    weight: PerDataset[Positive] = field(default_factory=lambda: PerDataset(default=1.0))

    def exponent(self) -> float:
        """Return the power of a dataset's size that its share follows."""
        return 1.0

    def compute_shares(self, datasets: Sequence[DatasetBatches]) -> list[float]:
        """Return each dataset's share; the shares sum to 1."""
        sizes = [len(dataset.rows) for dataset in datasets]
        # Of the largest, so that no power overflows.
        parts = [(size / max(sizes)) ** self.exponent() for size in sizes]
        parts = [
            part * self._find_weight(dataset) for part, dataset in zip(parts, datasets, strict=True)
        ]
        return [part / sum(parts) for part in parts]

    def counts(self, datasets: Sequence[DatasetBatches]) -> list[int]:
        """Return the number of batches of each dataset in an epoch."""
        examples = sum(len(dataset.rows) for dataset in datasets)
        shares = self.compute_shares(datasets)
        sizes = [min(dataset.size, len(dataset.rows)) for dataset in datasets]
        return [max(1, round(s * examples / n)) for s, n in zip(shares, sizes, strict=True)]

    def batches(self, pool: Pool, seed: int) -> Batches:
        datasets = self.batches_by_dataset(pool, seed)
        resized = [
            dataset.of_length(n) for dataset, n in zip(datasets, self.counts(datasets), strict=True)
        ]
        return Shuffled(resized, stable_seed(seed, "batches"))

    def _find_weight(self, dataset: DatasetBatches) -> float:
        weight = self.weight.of(dataset.info.name, dataset.info.task)
        return dataset.info.weight * (1.0 if weight is None else weight)
