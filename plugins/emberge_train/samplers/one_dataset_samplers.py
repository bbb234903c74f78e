"""Samplers whose batches have one dataset each: shuffled, by task, or one dataset after another."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from emberge import (
    Batches,
    Count,
    DataError,
    DatasetInfo,
    Negatives,
    PerDataset,
    Pool,
    Sampler,
    TaskKind,
    draw_order,
    make_seed,
    suggest,
)
from emberge.contracts import Rows, Tail
from emberge.wording import count_noun

from emberge_train.samplers.batches import (
    DatasetBatches,
    InOrder,
    Shuffled,
    TokenBatches,
    build_token_batches,
)

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

    def cut_dataset_batches(
        self, pool: Pool, seed: int, *, stage: int = 0, negatives: Negatives = "auto"
    ) -> list[DatasetBatches]:
        """Return each dataset's batches in order; leave out datasets without a batch, with a warning.

        Raises:
            DataError: if a dataset has no batch size, or no dataset fills a batch.
        """
        sequences = [self._build_batches(info, rows, seed) for info, rows in pool.items()]
        datasets = [
            replace(sequence, stage=stage, negatives=negatives)
            for sequence in sequences
            if len(sequence)
        ]
        too_small = ", ".join(map(self._describe_small, (s for s in sequences if not len(s))))
        if too_small and not datasets:
            raise DataError(
                f"no dataset fills a batch: {too_small}; lower batch_size or batch_tokens, or set tail: keep"
            )
        if too_small:
            warnings.warn(
                f"smaller than one batch and left out: {too_small}; "
                "lower their batch_size or set tail: wrap or keep",
                UserWarning,
                stacklevel=2,
            )
        return datasets

    def _build_batches(self, info: DatasetInfo, rows: Rows, seed: int) -> DatasetBatches:
        """Return a dataset's batches, those of single texts cut by `batch_tokens` if that is given."""
        row_seed = make_seed(seed, "rows", info.name)
        tokens = self.batch_tokens.of(info.name, info.task) if info.task == "text" else None
        if tokens is not None:
            return build_token_batches(DatasetBatches(info, rows, 1, row_seed, self.tail), tokens)
        size = self.batch_size.of(info.name, info.task)
        if size is None:
            raise DataError(
                f"dataset '{info.name}' ({info.task}) has no batch_size; give one under default, "
                "by_task or by_dataset"
            )
        return DatasetBatches(info, rows, size, row_seed, self.tail)

    @staticmethod
    def _describe_small(batches: DatasetBatches) -> str:
        size = f"{batches.limit} tokens" if isinstance(batches, TokenBatches) else batches.size
        return f"'{batches.info.name}' ({count_noun(len(batches.rows), 'row')}, batches of {size})"


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

    def group_by_task(self, datasets: Sequence[DatasetBatches]) -> list[list[DatasetBatches]]:
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
class BatchShuffle(OneDataset):
    """Batches of one dataset each; the batches of all datasets are shuffled together.

    One optimizer step sees one dataset, so in-batch negatives stay within a task (BOOM's BLS,
    arXiv:2602.05787; CoDiEmb's sampler, arXiv:2508.11442; first Liu et al., 2019, arXiv:1901.11504). Each row
    comes once an epoch, but the last rows that do not fill a batch (`tail: drop`), so the number of steps of
    a dataset is its number of rows over its `batch_size`. A smaller `batch_size` gives a task more steps,
    which is how CoDiEmb balances retrieval and similarity. A dataset's `weight` is ignored; `proportional`
    uses it.

    Example:
        sampler: {batch_shuffle: {batch_size: 64}}
    """

    def batches(self, pool: Pool, seed: int) -> Batches:
        return Shuffled(self.cut_dataset_batches(pool, seed), make_seed(seed, "batches"))


@dataclass(frozen=True, kw_only=True)
class TaskSequential(TaskOrder):
    """Batches grouped by task, one task after another; inside a task they are shuffled.

    Tasks come in `order`, by default classification, clustering, pair classification, sts and then retrieval
    with reranking, and the batches of each task are shuffled as by `batch_shuffle` (BOOM, arXiv:2602.05787).
    Each row comes once an epoch, but those that do not fill a batch.

    Example:
        data: ./datasets.yaml
        sampler: {task_sequential: {order: [sts, retrieval]}}
    """

    def batches(self, pool: Pool, seed: int) -> Batches:
        """Return the batches of all tasks, one task after another.

        Raises:
            DataError: if a dataset's task is not in `order`.
        """
        groups = self.group_by_task(self.cut_dataset_batches(pool, seed))
        return InOrder(
            [Shuffled(group, make_seed(seed, "task", i)) for i, group in enumerate(groups)]
        )


@dataclass(frozen=True, kw_only=True)
class DatasetSequential(TaskOrder):
    """Batches of one dataset after another, ordered by task (BOOM, arXiv:2602.05787).

    Tasks come in `order`, by default classification, clustering, pair classification, sts and then retrieval
    with reranking; inside a task the datasets come in random order, and so do the rows inside a dataset.
    `pin_last` names datasets that come at the very end, in the order given: BOOM ends with MS MARCO document
    and MS MARCO passage. Each row comes once an epoch, but those that do not fill a batch.

    Example:
        data: ./datasets.yaml
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
        datasets = self.cut_dataset_batches(pool, seed)
        pinned = {
            dataset.info.name: dataset for dataset in datasets if dataset.info.name in self.pin_last
        }
        free = [dataset for dataset in datasets if dataset.info.name not in pinned]
        unpinned: list[DatasetBatches] = []
        for number, group in enumerate(self.group_by_task(free)):
            unpinned += [
                group[i] for i in draw_order(len(group), make_seed(seed, "datasets", number))
            ]
        return InOrder(unpinned + [pinned[name] for name in self.pin_last if name in pinned])
