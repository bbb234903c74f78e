"""Batch plan: the rows of every step, known before the training begins."""

from __future__ import annotations

import bisect
import hashlib
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from emberge.contracts import (
    Batch,
    Batches,
    DatasetInfo,
    Negatives,
    PerDataset,
    Pool,
    Rows,
    Sampler,
    take_rows,
)
from emberge.errors import DataError
from emberge.seeds import make_seed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Batches of the first epoch that the fingerprint hashes, to notice code that draws other batches.
PROBED_BATCHES = 16
# Number of epochs whose batches are in memory: the epoch that ends and the epoch that begins.
EPOCHS_IN_MEMORY = 2


@dataclass(frozen=True)
class PlannedPart:
    """Rows of one dataset in a batch, and whether other rows' texts are negatives for them.

    The loss's `cross_rank`, which may differ by task and dataset, decides whether other ranks' texts are too.
    """

    dataset: str
    rows: NDArray[np.int64]
    in_batch: bool


@dataclass(frozen=True)
class PlannedBatch:
    """One optimizer step over all ranks."""

    step: int
    epoch: int
    stage: int
    parts: tuple[PlannedPart, ...]

    @property
    def size(self) -> int:
        """Number of the batch's rows, over all datasets and ranks."""
        return sum(len(part.rows) for part in self.parts)

    @property
    def name(self) -> str:
        """Names of the batch's datasets, joined by `+`."""
        return "+".join(dict.fromkeys(part.dataset for part in self.parts))


def select_rows(samplers: Sequence[Sampler], pool: Pool, seed: int) -> Pool:
    """Apply the samplers' selections one after another, and return the pool without empty datasets."""
    for sampler in samplers:
        pool = sampler.select(pool, seed)
    return {info: rows for info, rows in pool.items() if len(rows)}


def refuse_unknown_names(options: Mapping[str, Any], infos: Iterable[DatasetInfo]) -> None:
    """Refuse unknown datasets in options; `options` maps an option's name in messages to its value.

    Raises:
        DataError: if a dataset does not exist; has the option, the name, and the nearest existing name.
    """
    datasets = [info.name for info in infos]
    for label, option in options.items():
        if isinstance(option, PerDataset):
            for problem in option.find_unknown(label, datasets):
                raise DataError(problem)


def _describe_dataset(info: DatasetInfo, rows: Rows) -> tuple[object, ...]:
    """Return what of a dataset and its rows decides a plan."""
    tokens = None if info.tokens is None else int(info.tokens.sum())
    row_hash = hashlib.sha256(take_rows(rows).tobytes()).hexdigest()
    return info.name, info.task, info.size, info.weight, info.negatives, tokens, row_hash


class BatchPlan:
    """Every batch of a training: a pure function of pool, samplers, seed and step.

    The plan does not depend on ranks or devices, so any number of them draws the same batches. Only the
    batches of two epochs are in memory; if the sampler returns `Batches`, these are the orders of their rows.
    `max_steps` overrides `epochs`; a fraction of an epoch is its first batches. `negatives` states, by task
    or dataset, whether other rows' texts are negatives; where nothing says so, they are in the datasets of
    `in_batch_datasets`.

    Raises:
        DataError: if there are no rows to train on, or an option names a dataset that does not exist.
    """

    def __init__(
        self,
        pool: Pool,
        samplers: Sequence[Sampler],
        *,
        seed: int,
        epochs: float = 1.0,
        max_steps: int | None = None,
        negatives: PerDataset[Negatives] | None = None,
        in_batch_datasets: Collection[str] = (),
    ) -> None:
        if not samplers:
            raise DataError(
                "there is no sampler; end the chain with one that groups, such as batch_shuffle"
            )
        self.seed = seed
        self._negatives = negatives or PerDataset()
        self._in_batch_datasets = frozenset(in_batch_datasets)
        sampler_options = {
            f"{option.name} of sampler {type(sampler).__name__}": getattr(sampler, option.name)
            for sampler in samplers
            for option in fields(sampler)
        }
        refuse_unknown_names({**sampler_options, "negatives": self._negatives}, pool)
        self.pool = select_rows(samplers, pool, seed)
        if not self.pool:
            raise DataError(
                "there are no examples to train on: every dataset is empty after selection"
            )
        self._grouping = samplers[-1]
        self._infos = {info.name: info for info in self.pool}
        self._epoch_batches: dict[int, Sequence[Batch] | Batches] = {}
        self._has_warned = False
        self.starts, self._groups = self._count_steps(epochs, max_steps)
        self.steps = self.starts[-1]
        self.fingerprint = self._compute_fingerprint(
            [_describe_dataset(info, rows) for info, rows in pool.items()],
            # Modules are not named, so that code may move without restarting users' trainings.
            [(repr(sampler), getattr(sampler, "revision", 1)) for sampler in samplers],
            *(repr(self._negatives), seed, epochs, max_steps, self.starts),
        )

    def _count_steps(
        self, epochs: float, max_steps: int | None
    ) -> tuple[list[int], tuple[tuple[str, bool], ...]]:
        """Return the first step of every epoch and the end, and the groups as `list_groups` returns them."""
        starts = [0]
        groups: dict[tuple[str, bool], None] = {}
        while True:
            epoch = len(starts) - 1
            batches = self._build_epoch_batches(epoch)
            share = 1.0 if max_steps is not None else min(1.0, epochs - epoch)
            count = max(1 if epoch == 0 else 0, round(len(batches) * share))
            if max_steps is not None:
                count = min(count, max_steps - starts[-1])
            groups |= dict.fromkeys(self._find_groups(batches, count))
            starts.append(starts[-1] + count)
            if starts[-1] == max_steps or (max_steps is None and epoch + 1 >= epochs):
                return starts, tuple(groups)

    def _find_groups(
        self, batches: Sequence[Batch] | Batches, count: int
    ) -> Iterator[tuple[str, bool]]:
        if isinstance(batches, Batches):
            pairs = sorted(batches.kinds()) if count else []
        else:
            pairs = [(part.dataset, b.negatives) for b in batches[:count] for part in b.parts]
        for name, negatives in dict.fromkeys(pairs):
            yield name, self._uses_in_batch(name, negatives)

    def _compute_fingerprint(self, *facts: object) -> str:
        import numpy as np

        digest = hashlib.sha256(repr(facts).encode())
        # A sample of the first epoch's batches, including the first and the last.
        steps = np.unique(np.linspace(0, self.starts[1] - 1, PROBED_BATCHES).astype(np.int64))
        batches = self._build_epoch_batches(0)
        for batch in (batches[int(step)] for step in steps):
            names = [part.dataset for part in batch.parts]
            digest.update(repr((batch.stage, batch.negatives, names)).encode())
            for part in batch.parts:
                digest.update(take_rows(part.rows).tobytes())
        return digest.hexdigest()

    def _require_one_kind(self, batch: Batch) -> Batch:
        """Return a batch; refuse several kinds of pairs, as distances of images and sounds do not compare."""
        names = [part.dataset for part in batch.parts if len(part.rows)]
        name_by_pair = {self._infos[name].pair: name for name in names}
        if len(name_by_pair) > 1:
            listed = " and ".join(f"{pair} ('{n}')" for pair, n in sorted(name_by_pair.items()))
            raise DataError(
                f"sampler {type(self._grouping).__name__} puts {listed} into one batch, and a batch has one "
                "kind of pair; take a sampler whose batches are of one dataset, such as batch_shuffle"
            )
        return batch

    def _build_epoch_batches(self, epoch: int) -> Sequence[Batch] | Batches:
        if epoch not in self._epoch_batches:
            with warnings.catch_warnings():
                if self._has_warned:  # each of the sampler's warnings is shown once
                    warnings.simplefilter("ignore", UserWarning)
                batches = self._grouping.batches(self.pool, make_seed(self.seed, "epoch", epoch))
                if not isinstance(batches, Batches):
                    batches = [b for b in batches if any(len(p.rows) for p in b.parts)]
            if not len(batches):
                raise DataError(f"sampler {type(self._grouping).__name__} made no batch")
            while len(self._epoch_batches) >= EPOCHS_IN_MEMORY:
                del self._epoch_batches[next(iter(self._epoch_batches))]
            self._epoch_batches[epoch], self._has_warned = batches, True
        return self._epoch_batches[epoch]

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> PlannedBatch:
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of {self.steps}")
        epoch = bisect.bisect_right(self.starts, step) - 1
        batch = self._require_one_kind(self._build_epoch_batches(epoch)[step - self.starts[epoch]])
        parts = [
            PlannedPart(
                p.dataset, take_rows(p.rows), self._uses_in_batch(p.dataset, batch.negatives)
            )
            for p in batch.parts
            if len(p.rows)
        ]
        return PlannedBatch(step, epoch, batch.stage, tuple(parts))

    def __iter__(self) -> Iterator[PlannedBatch]:
        return (self[step] for step in range(self.steps))

    def _uses_in_batch(self, name: str, chosen: Negatives) -> bool:
        """Return whether other rows' texts are negatives, by sampler, recipe or catalogue, else by losses."""
        info = self._infos[name]
        for word in (chosen, self._negatives.of(name, info.task), info.negatives):
            if word not in (None, "auto"):
                return word == "in_batch"
        return name in self._in_batch_datasets

    def list_groups(self) -> tuple[tuple[str, bool], ...]:
        """Return each pair (dataset, whether other rows' texts are negatives) that occurs in the plan.

        If the sampler returns `Batches`, they are known without reading the batches.
        """
        return self._groups

    @property
    def sizes(self) -> Mapping[str, int]:
        """Rows of every dataset after selection."""
        return {info.name: len(rows) for info, rows in self.pool.items()}
