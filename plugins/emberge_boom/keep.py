"""The sampler that keeps some of the datasets, by name or by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emberge import DataError, Pool, Sampler, suggest
from emberge.contracts import TaskKind


@dataclass(frozen=True, kw_only=True)
class Keep(Sampler):
    """The datasets of some tasks, or with some names; other datasets are omitted.

    A merge of one training for each task (`foreach: {task: [retrieval, sts]}`) is BOOM's task-level merging
    (arXiv:2602.05787); a merge of one training for each dataset is its dataset-level merging. This sampler
    only selects rows: end the chain with a sampler that makes batches, such as `batch_shuffle`.

    Example:
        members:
          foreach: {task: [retrieval, sts]}
          train:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            sampler: [{keep: {tasks: $task}}, batch_shuffle]
    """

    tasks: tuple[TaskKind, ...] = ()
    """Kinds of task; a dataset of any of them is kept."""
    datasets: tuple[str, ...] = ()
    """Names of datasets."""

    def __post_init__(self) -> None:
        if bool(self.tasks) == bool(self.datasets):
            raise ValueError("give either tasks or datasets")

    def select(self, pool: Pool, seed: int) -> Pool:
        """Return the pool with only the datasets that have these tasks or names.

        Raises:
            DataError: if no dataset has one of the tasks or names.
        """
        self._refuse_unknown("dataset is for", self.tasks, sorted({i.task for i in pool}))
        self._refuse_unknown("dataset is named", self.datasets, [i.name for i in pool])
        return {
            info: rows
            for info, rows in pool.items()
            if info.task in self.tasks or info.name in self.datasets
        }

    def _refuse_unknown(
        self, noun: str, requested_names: Sequence[str], valid_names: Sequence[str]
    ) -> None:
        for word in requested_names:
            if word not in valid_names:
                hint = suggest(word, valid_names) or f"; there are {', '.join(valid_names)}"
                raise DataError(f"keep: no {noun} '{word}'{hint}")
