"""An evaluator whose scores differ by what each query gains, and its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from emberge import Evaluator, Model, ModelRef, TaskInfo, TaskScore, Units, Workspace
from emberge.contracts import KeptIndex

OLD = KeptIndex(model=ModelRef("$old"))
TASKS = [
    TaskInfo(name, "retrieval", "ndcg_at_10", fingerprint=f"data of {name}")
    for name in ("code", "papers")
]
QUERIES = np.linspace(0.1, 0.5, 40)


@dataclass(frozen=True, kw_only=True)
class Given(Evaluator):
    """Evaluator whose figures are given by model and index: what each query has more than the old model."""

    gains: Mapping[tuple[str, bool], Any] = field(default_factory=dict)
    indexes: tuple[KeptIndex, ...] = (OLD,)

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        on = [task.on_index(index, "hash-old") for task in TASKS for index in self.indexes]
        return [*TASKS, *on]

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        for task in tasks:
            gain = self.gains.get((model.name, task.index is not None), 0.0)
            values = QUERIES + gain
            yield TaskScore(task, float(values.mean()), Units("query", "mean", values.tolist()))
