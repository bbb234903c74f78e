"""Batches of one dataset in an epoch, and of every dataset of a pool."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from emberge.contracts.dataset import DatasetInfo, Rows
from emberge.contracts.option import PerDataset
from emberge.contracts.sampler import Batch, Batches, Negatives, Part, Pool, Tail
from emberge.errors import DataError
from emberge.seeds import stable_seed
from emberge.training.plan.lazy_rows import take_rows
from emberge.training.plan.permutation import Permutation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DatasetBatches", "batches_by_dataset"]


@dataclass(frozen=True, eq=False)
class DatasetBatches(Batches):
    """Batches of one dataset: its rows in a random order, cut into pieces of `size`.

    `tail` is the treatment of the rows that do not fill a last batch: `drop` leaves them out, `wrap` fills
    up with rows from the start of the order, `keep` makes a smaller batch. A row is in a batch once:
    under `wrap` a dataset smaller than a batch stays a smaller batch. `count` is how many batches are
    wanted: fewer leave the rest out, more begin again with another order; None is each row once.
    """

    info: DatasetInfo
    rows: Rows
    size: int
    seed: int
    tail: Tail = "drop"
    count: int | None = None
    stage: int = 0
    negatives: Negatives = "auto"

    @property
    def one_pass(self) -> int:
        """Number of batches in which each row is seen once."""
        full, rest = divmod(len(self.rows), self.size)
        return full + (1 if rest and self.tail != "drop" else 0)

    def __len__(self) -> int:
        return self.one_pass if self.count is None else self.count

    def __getitem__(self, place: int) -> Batch:
        if not 0 <= place < len(self):
            raise IndexError(f"batch {place} of {len(self)}")
        turn, number = divmod(place, self.one_pass)
        seed = stable_seed(self.seed, "turn", turn) if turn else self.seed
        taken = take_rows(self.rows, self._places(Permutation(len(self.rows), seed), number))
        return Batch((Part(self.info.name, taken),), self.stage, self.negatives)

    def _places(self, order: Permutation, number: int) -> NDArray[np.int64]:
        import numpy as np

        start = number * self.size
        found = order.part(start, start + self.size)
        short = self.size - len(found)
        if short and self.tail == "wrap":
            return np.concatenate([found, order.part(0, min(short, start))])
        return found

    def kinds(self) -> frozenset[tuple[str, Negatives]]:
        return frozenset({(self.info.name, self.negatives)} if len(self) else ())

    def of_length(self, count: int) -> DatasetBatches:
        """Return the batches of the dataset with another number of them."""
        return replace(self, count=count)


def batches_by_dataset(
    pool: Pool,
    batch_size: PerDataset[int],
    tail: Tail,
    seed: int,
    *,
    stage: int = 0,
    negatives: Negatives = "auto",
) -> list[DatasetBatches]:
    """Return each dataset's batches in the pool's order; one without a batch is left out with a warning.

    Raises:
        DataError: when a dataset has no batch size, or no dataset fills a batch.
    """
    datasets: list[DatasetBatches] = []
    small: list[str] = []
    for info, rows in pool.items():
        size = _size(batch_size, info)
        own = stable_seed(seed, "rows", info.name)
        one = DatasetBatches(info, rows, size, own, tail, stage=stage, negatives=negatives)
        if len(one):
            datasets.append(one)
        else:
            small.append(f"'{info.name}' ({len(rows)} rows, batches of {size})")
    if small and not datasets:
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
    return datasets


def _size(batch_size: PerDataset[int], info: DatasetInfo) -> int:
    size = batch_size.of(info.name, info.task)
    if size is None:
        raise DataError(
            f"dataset '{info.name}' ({info.task}) has no batch_size; give one under default, "
            "by_task or by_dataset"
        )
    return size
