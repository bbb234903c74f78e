"""Shares of datasets: the number of batches that each gives in an epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from emberge import Batches, Count, PerDataset, Pool, Positive, stable_seed
from emberge.training import DatasetBatches, Shuffled

from emberge_train.samplers.one_dataset import OneDataset


@dataclass(frozen=True, kw_only=True)
class Shares(OneDataset):
    """Batches of one dataset each, in random order, each dataset with a share of the epoch.

    `weight` multiplies a dataset's share, by task or dataset, and so does the `weight` of the data's own
    entry. `size_limit` is the number of rows above which a dataset counts as no larger. Shares are of
    examples, or of `share_of: batches`, which differ where batch sizes do: of examples, a smaller batch
    size gives a task more steps. An epoch has about `epoch_examples` examples, by default as many as there
    are rows, and at least one batch of each dataset. Shares are kept to within a batch, not drawn: rows of a
    dataset come again, in another order, only after each of them came, but for a dropped tail.
    """

    weight: PerDataset[Positive] = field(default_factory=lambda: PerDataset(default=1.0))
    size_limit: Count | None = None
    share_of: Literal["examples", "batches"] = "examples"
    epoch_examples: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = (self.weight.default, *self.weight.by_task.values())
        for value in (*given, *self.weight.by_dataset.values()):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"weight must be above 0, not {value:g}")
        for name in ("size_limit", "epoch_examples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")

    def exponent(self) -> float:
        """Return the power of a dataset's size that its share follows."""
        return 1.0

    def shares(self, datasets: Sequence[DatasetBatches]) -> list[float]:
        """Return each dataset's share, which together make 1."""
        limit = math.inf if self.size_limit is None else self.size_limit
        sizes = [min(len(one.rows), limit) for one in datasets]
        # Of the largest, so that no power overflows.
        parts = [(size / max(sizes)) ** self.exponent() for size in sizes]
        parts = [part * self._weight(one) for part, one in zip(parts, datasets, strict=True)]
        return [part / sum(parts) for part in parts]

    def counts(self, datasets: Sequence[DatasetBatches]) -> list[int]:
        """Return the number of batches of each dataset in an epoch."""
        examples = self.epoch_examples or sum(len(one.rows) for one in datasets)
        shares = self.shares(datasets)
        sizes = [min(one.size, len(one.rows)) for one in datasets]
        if self.share_of == "examples":
            wanted = [s * examples / size for s, size in zip(shares, sizes, strict=True)]
        else:
            mean = sum(s * size for s, size in zip(shares, sizes, strict=True))
            wanted = [s * examples / mean for s in shares]
        return [max(1, round(count)) for count in wanted]

    def batches(self, pool: Pool, seed: int) -> Batches:
        datasets = self.batches_by_dataset(pool, seed)
        long = [one.of_length(n) for one, n in zip(datasets, self.counts(datasets), strict=True)]
        return Shuffled(long, stable_seed(seed, "batches"))

    def _weight(self, one: DatasetBatches) -> float:
        own = self.weight.of(one.info.name, one.info.task)
        return one.info.weight * (1.0 if own is None else own)
