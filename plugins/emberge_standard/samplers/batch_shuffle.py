"""Batch-level shuffling: batches of one dataset each, in random order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from emberge import (
    Batch,
    DataError,
    DatasetInfo,
    Part,
    PerDataset,
    Pool,
    Sampler,
    shuffled,
    stable_seed,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Tail = Literal["drop", "wrap", "keep"]


@dataclass(frozen=True, kw_only=True)
class BatchShuffle(Sampler):
    """Cut every dataset into batches of its own, then shuffle the batches of all datasets.

    One optimizer step sees one dataset, so in-batch negatives stay within a task (BOOM's BLS,
    arXiv:2602.05787; CoDiEmb's sampler, arXiv:2508.11442). `batch_size` counts examples over all ranks and
    may differ by task or dataset: a smaller one gives a task more steps. The rows that do not fill a last
    batch are dropped (`tail: drop`), filled up with rows from the start of the epoch's order (`wrap`), or
    make a smaller batch (`keep`). A dataset smaller than one batch therefore teaches nothing under `drop`:
    that is warned about, and an error when no batch is left at all.
    """

    batch_size: PerDataset[int] = field(default_factory=lambda: PerDataset(default=32))
    tail: Tail = "drop"

    def __post_init__(self) -> None:
        size = self.batch_size
        for value in (size.default, *size.by_task.values(), *size.by_dataset.values()):
            if value is not None and value < 1:
                raise ValueError(f"batch_size must be at least 1, not {value}")

    def batches(self, pool: Pool, seed: int) -> Iterator[Batch]:
        """Batches of one dataset each, in random order.

        Raises:
            DataError: when a dataset has no batch size, or no dataset fills a batch.
        """
        batches: list[Batch] = []
        small: list[str] = []
        for info, rows in pool.items():
            size = self._size(info)
            cut = list(_cut(rows, size, stable_seed(seed, "rows", info.name), self.tail))
            if not cut:
                small.append(f"'{info.name}' ({len(rows)} rows, batches of {size})")
            batches += [Batch((Part(info.name, part),)) for part in cut]
        if not batches:
            raise DataError(
                f"no dataset fills a batch: {', '.join(small)}; lower batch_size or set tail: keep"
            )
        if small:
            warnings.warn(
                f"smaller than one batch and left out: {', '.join(small)}; "
                "lower their batch_size or set tail: wrap or keep",
                UserWarning,
                stacklevel=2,
            )
        for place in shuffled(len(batches), stable_seed(seed, "batches")):
            yield batches[place]

    def _size(self, info: DatasetInfo) -> int:
        size = self.batch_size.of(info.name, info.task)
        if size is None:
            raise DataError(
                f"dataset '{info.name}' ({info.task}) has no batch_size; give one under default, "
                f"by_task or by_dataset"
            )
        return size


def _cut(rows: Any, size: int, seed: int, tail: Tail) -> Iterator[NDArray[np.int64]]:
    import numpy as np

    order = np.asarray(rows, dtype=np.int64)[shuffled(len(rows), seed)]
    full = len(order) // size * size
    for start in range(0, full, size):
        yield order[start : start + size]
    rest = order[full:]
    if len(rest) and tail == "keep":
        yield rest
    elif len(rest) and tail == "wrap":
        # A row stands in a batch once: a dataset smaller than a batch stays a smaller batch.
        yield np.concatenate([rest, order[: min(size - len(rest), full)]])
