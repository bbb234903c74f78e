"""The batch plan: step -> rows of a dataset, known before training begins."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from emberge.contracts.dataset import DatasetInfo, TaskKind
from emberge.contracts.option import PerDataset
from emberge.contracts.sampler import Batch, Negatives, Part, Pool, Sampler
from emberge.errors import DataError
from emberge.seeds import stable_seed

__all__ = ["BatchPlan", "PlannedBatch", "PlannedPart", "in_batch_negatives", "select"]

# Tasks whose other rows are wrong answers (BOOM, arXiv:2602.05787): the table in its text, STS left out.
IN_BATCH_TASKS: frozenset[TaskKind] = frozenset({"retrieval", "reranking"})


@dataclass(frozen=True)
class PlannedPart:
    """Rows of one dataset in a batch, and whether other rows' texts are negatives for them."""

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
        """Rows."""
        return sum(len(part.rows) for part in self.parts)

    @property
    def name(self) -> str:
        """Its datasets' names."""
        return "+".join(dict.fromkeys(part.dataset for part in self.parts))


def in_batch_negatives(
    info: DatasetInfo, chosen: Negatives, options: PerDataset[Negatives]
) -> bool:
    """Whether other rows' texts are negatives: the sampler's word, then the recipe's, then the task's."""
    word: Literal["auto", "in_batch", "hard_only"] | None = chosen
    if word == "auto":
        word = options.of(info.name, info.task)
    if word in (None, "auto"):
        return info.task in IN_BATCH_TASKS
    return word == "in_batch"


def select(samplers: Sequence[Sampler], pool: Pool, seed: int) -> Pool:
    """Let each sampler choose in turn; datasets without a row left are dropped."""
    for sampler in samplers:
        pool = sampler.select(pool, seed)
    return {info: rows for info, rows in pool.items() if len(rows)}


class BatchPlan:
    """Every batch of a training: a pure function of pool, samplers, seed and step.

    It depends on no rank and no device, so that any number of them draws the same batches.
    `max_steps` overrides `epochs`; a fraction of an epoch is its first batches.

    Raises:
        DataError: when there is nothing to train on.
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
    ) -> None:
        if not samplers:
            raise DataError(
                "there is no sampler; end the chain with one that groups, such as batch_shuffle"
            )
        self.seed = seed
        self.pool = select(samplers, pool, seed)
        if not self.pool:
            raise DataError(
                "there are no examples to train on: every dataset is empty after selection"
            )
        self._grouping = samplers[-1]
        self._infos = {info.name: info for info in self.pool}
        self._negatives = negatives or PerDataset()
        self._epoch = -1
        self._batches: list[Batch] = []
        self.starts, self.fingerprint = self._survey(epochs, max_steps)
        self.steps = self.starts[-1]

    def _survey(self, epochs: float, max_steps: int | None) -> tuple[list[int], str]:
        """First step of every epoch and the end, and a hash of every batch."""
        digest = hashlib.sha256()
        starts = [0]
        while True:
            epoch = len(starts) - 1
            count = len(self._load(epoch))
            share = 1.0 if max_steps is not None else min(1.0, epochs - epoch)
            count = max(1 if epoch == 0 else 0, round(count * share))
            if max_steps is not None:
                count = min(count, max_steps - starts[-1])
            for batch in self._batches[:count]:
                _digest(digest, batch)
            starts.append(starts[-1] + count)
            if starts[-1] == max_steps or (max_steps is None and epoch + 1 >= epochs):
                return starts, digest.hexdigest()

    def _load(self, epoch: int) -> list[Batch]:
        if epoch != self._epoch:
            with warnings.catch_warnings():
                if epoch:  # what a sampler has to say it says once
                    warnings.simplefilter("ignore", UserWarning)
                batches = self._grouping.batches(self.pool, stable_seed(self.seed, "epoch", epoch))
                self._batches = [b for b in batches if any(len(p.rows) for p in b.parts)]
            if not self._batches:
                raise DataError(f"sampler {type(self._grouping).__name__} made no batch")
            self._epoch = epoch
        return self._batches

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> PlannedBatch:
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of {self.steps}")
        epoch = int(np.searchsorted(self.starts, step, side="right")) - 1
        batch = self._load(epoch)[step - self.starts[epoch]]
        parts = tuple(self._part(part, batch.negatives) for part in batch.parts if len(part.rows))
        return PlannedBatch(step, epoch, batch.stage, parts)

    def __iter__(self) -> Iterator[PlannedBatch]:
        return (self[step] for step in range(self.steps))

    def _part(self, part: Part, negatives: Negatives) -> PlannedPart:
        in_batch = in_batch_negatives(self._infos[part.dataset], negatives, self._negatives)
        return PlannedPart(part.dataset, np.asarray(part.rows, dtype=np.int64), in_batch)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Rows of every dataset after selection."""
        return {info.name: len(rows) for info, rows in self.pool.items()}


def _digest(digest: Any, batch: Batch) -> None:
    head = [batch.stage, batch.negatives, [part.dataset for part in batch.parts]]
    digest.update(json.dumps(head).encode())
    for part in batch.parts:
        digest.update(np.ascontiguousarray(part.rows, dtype="<i8").tobytes())
