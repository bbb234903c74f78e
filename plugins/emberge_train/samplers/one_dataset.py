"""Batches of one dataset each: their size, and the treatment of tails."""

from __future__ import annotations

from dataclasses import dataclass, field

from emberge import Count, Negatives, PerDataset, Pool, Sampler
from emberge.contracts import Tail
from emberge.training import DatasetBatches, batches_by_dataset


@dataclass(frozen=True, kw_only=True)
class OneDataset(Sampler):
    """Batches of one dataset each.

    `batch_size` counts examples over all ranks and may differ by task or dataset; of single texts these are
    windows, and `batch_tokens` makes batches of about so many of their tokens instead. The rows that do not
    fill a last batch are dropped (`tail: drop`), filled up with rows from the start of the epoch's order
    (`wrap`), or make a smaller batch (`keep`). A dataset smaller than one batch therefore teaches nothing
    under `drop`: that is warned about, and an error when no batch is left at all.
    """

    batch_size: PerDataset[Count] = field(default_factory=lambda: PerDataset(default=32))
    batch_tokens: PerDataset[Count] = field(default_factory=PerDataset)
    tail: Tail = "drop"

    def __post_init__(self) -> None:
        for name in ("batch_size", "batch_tokens"):
            size = getattr(self, name)
            for value in (size.default, *size.by_task.values(), *size.by_dataset.values()):
                if value is not None and value < 1:
                    raise ValueError(f"{name} must be at least 1, not {value}")

    def batches_by_dataset(
        self, pool: Pool, seed: int, *, stage: int = 0, negatives: Negatives = "auto"
    ) -> list[DatasetBatches]:
        """Return each dataset's batches.

        Raises:
            DataError: when a dataset has no batch size, or no dataset fills a batch.
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
