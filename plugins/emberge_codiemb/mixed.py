"""The baseline of CoDiEmb's comparisons: steps with batches of several datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from emberge import Batch, Batches, Count, Negatives, PerDataset, Pool, Sampler, make_seed
from emberge_train import OneDataset, Shuffled


@dataclass(frozen=True, kw_only=True)
class Mixed(Sampler):
    """Training steps of several small batches, each from one dataset: the baseline of CoDiEmb.

    In the paper's comparisons (arXiv:2508.11442) every rank draws its own batch, so that the ranks of one
    step may have different tasks, and may have the same rows. Here a step has `draws` small batches, one for
    each rank of the paper's setting, drawn independently of one another. Each small batch has the loss of its
    dataset, and its negatives come from itself alone. `batch_size` is the number of examples of a whole step
    and may differ by task or dataset; a small batch has 1 / `draws` of it. An epoch has about as many
    examples as there are rows; rows that do not fill a small batch are dropped.

    Example:
        sampler: {mixed: {draws: 8, batch_size: 16}}
    """

    batch_size: PerDataset[Count] = field(default_factory=lambda: PerDataset(default=32))
    draws: Count = 8

    def __post_init__(self) -> None:
        size = self.batch_size
        for value in (size.default, *size.by_task.values(), *size.by_dataset.values()):
            if value is not None and value < self.draws:
                raise ValueError(
                    f"batch_size must be at least {self.draws}, one example a draw, not {value}"
                )

    def batches(self, pool: Pool, seed: int) -> Batches:
        size = self.batch_size
        small_batch_sizes = PerDataset(
            default=None if size.default is None else size.default // self.draws,
            by_task={name: value // self.draws for name, value in size.by_task.items()},
            by_dataset={name: value // self.draws for name, value in size.by_dataset.items()},
        )
        datasets = OneDataset(batch_size=small_batch_sizes).cut_dataset_batches(pool, seed)
        batches_by_draw = []
        for draw in range(self.draws):
            draw_seed = make_seed(seed, "draw", draw)
            reseeded = [
                replace(dataset, seed=make_seed(draw_seed, "rows", dataset.info.name))
                for dataset in datasets
            ]
            batches_by_draw.append(Shuffled(reseeded, make_seed(draw_seed, "batches")))
        return _MixedTogether(batches_by_draw)


class _MixedTogether(Batches):
    """Sequence whose batch n joins batch n of every given sequence; each row comes about once."""

    def __init__(self, batches_by_draw: Sequence[Batches]) -> None:
        self._batches_by_draw = batches_by_draw

    def __len__(self) -> int:
        return max(1, len(self._batches_by_draw[0]) // len(self._batches_by_draw))

    def __getitem__(self, number: int) -> Batch:
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        return Batch(tuple(part for each in self._batches_by_draw for part in each[number].parts))

    def kinds(self) -> frozenset[tuple[str, Negatives]]:
        return self._batches_by_draw[0].kinds()
