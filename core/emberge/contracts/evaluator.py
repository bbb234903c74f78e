"""Evaluators: give a model scores on tasks, with what is needed to compare two models honestly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emberge.contracts.dataset import Domain
    from emberge.contracts.step import Model, Preflight, Workspace
    from emberge.errors import Problem

__all__ = ["Evaluator", "TaskInfo", "TaskScore", "Units"]


@dataclass(frozen=True, slots=True)
class Units:
    """What a score was computed from, unit by unit, so that a paired bootstrap can resample it.

    `statistic` is "mean" (of `values`), "spearman" or "average_precision" (of `values` against `gold`);
    `unit` is the word for one of them: query, pair, text.
    """

    unit: str
    statistic: str
    values: Sequence[float]
    gold: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task: its name, kind of task, main metric, language and domain relative to the training."""

    name: str
    kind: str
    metric: str
    languages: tuple[str, ...] = ()
    domain: Domain | None = None


@dataclass(frozen=True, slots=True)
class TaskScore:
    """A model's main score on one task, as a share (0 to 1), and the evaluator's own full result."""

    task: TaskInfo
    score: float
    units: Units | None = None
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Scores models on tasks. Results are kept by the runner under the model's content hash."""

    def tasks(self, workspace: Workspace) -> Sequence[TaskInfo]:
        """What will be scored, in order."""
        raise NotImplementedError

    def check(self, context: Preflight) -> Iterator[Problem]:
        """Faults that can be seen before a run."""
        return iter(())

    def evaluate(self, model: Model, workspace: Workspace) -> Iterator[TaskScore]:
        """Scores of one model, task by task, reporting progress as it goes."""
        raise NotImplementedError
