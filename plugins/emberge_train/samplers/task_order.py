"""Tasks one after another, for samplers that go through data in an order of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emberge import DataError, TaskKind, suggest
from emberge.contracts import TASK_KINDS
from emberge.training import DatasetBatches

from emberge_train.samplers.one_dataset import OneDataset

# BOOM's order, in which reranking counts as retrieval; pair classification, which BOOM has not, is like sts.
BOOM_ORDER: tuple[TaskKind, ...] = (
    "classification",
    "clustering",
    "pair_classification",
    "sts",
    "retrieval",
)


@dataclass(frozen=True, kw_only=True)
class TaskOrder(OneDataset):
    """Batches of one task after those of another.

    `order` names the kinds of task, first to last; reranking goes with retrieval unless it is named.
    """

    order: tuple[TaskKind, ...] = BOOM_ORDER

    def __post_init__(self) -> None:
        super().__post_init__()
        for task in self.order:
            if task not in TASK_KINDS:
                raise ValueError(f"order: there is no task '{task}'{suggest(task, TASK_KINDS)}")
            if self.order.count(task) > 1:
                raise ValueError(f"order names {task} twice")

    def by_task(self, datasets: Sequence[DatasetBatches]) -> list[list[DatasetBatches]]:
        """Return the batches of each task's datasets, in the order of tasks.

        Raises:
            DataError: when a dataset's task is not in the order.
        """
        found: dict[TaskKind, list[DatasetBatches]] = {task: [] for task in self.order}
        for one in datasets:
            task = one.info.task
            if task == "reranking" and task not in found:
                task = "retrieval"
            if task not in found:
                raise DataError(
                    f"dataset '{one.info.name}' is for {task}, which `order` does not name "
                    f"({', '.join(self.order)}); add it"
                )
            found[task].append(one)
        return [group for group in found.values() if group]
