"""Evaluators, which score models on tasks and return what a statistical comparison of two models needs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from emberge.contracts.dataset import Split

if TYPE_CHECKING:
    from pathlib import Path

    from emberge.contracts.dataset import Domain
    from emberge.contracts.result import Model
    from emberge.contracts.step import Preflight, Workspace
    from emberge.errors import Problem


# Metrics where less is better.
LESS_IS_BETTER = frozenset({"loss", "nats/token"})
Statistic = Literal["mean", "ratio", "spearman", "average_precision", "macro_f1"]
TextRole = Literal["query", "document"]


@dataclass(frozen=True, slots=True)
class Units:
    """The values behind a score, unit by unit, so that a paired bootstrap can resample them.

    `statistic` is "mean" (of `values`), "ratio" (the sum of `values` over the sum of `gold`), "spearman" or
    "average_precision" (of `values` against `gold`), or "macro_f1" (`values` are the predicted numbers of
    classes, `gold` the right ones). `unit` is the word for one unit: query, pair, text. Units come in the
    same order for every model. With `groups`, one label per unit, the statistic is computed inside each group
    and averaged over the groups (a task of several subsets).
    """

    unit: str
    statistic: Statistic
    values: Sequence[float]
    gold: Sequence[float] | None = None
    groups: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One task: its name, kind of task, main metric, languages, and domain relative to the training.

    The domain "elsewhere" is unlike anything in the training: on its tasks, a model can only lose abilities
    of its base. `metric` is one of `LESS_IS_BETTER` for a loss. `note` is for readers of the score (for
    example, that the corpus was cut). `fingerprint` hashes all that the score depends on except the model:
    data, options, versions; if it is empty, scores are not reused. `split` is the half of the data that is
    scored, or None if the evaluator does not know. `size` is the number of leading dimensions that are
    scored, if these are not all. `seed` is the seed of an evaluation that draws random numbers, such as a
    fine-tuning.
    """

    name: str
    kind: str
    metric: str
    languages: tuple[str, ...] = ()
    domain: Domain | None = None
    note: str = ""
    fingerprint: str = ""
    split: Split | None = None
    size: int | None = None
    seed: int | None = None

    @property
    def label(self) -> str:
        """Name with the size and the seed, if any: `STS12@256`, `xnli#1`; no two tasks share a label."""
        size = "" if self.size is None else f"@{self.size}"
        return f"{self.name}{size}" if self.seed is None else f"{self.name}{size}#{self.seed}"

    @property
    def less_is_better(self) -> bool:
        """True if lower scores are better, as for a loss."""
        return self.metric in LESS_IS_BETTER

    def at_seed(self, seed: int) -> TaskInfo:
        """Return a copy of the task that is run with a seed, with its own fingerprint."""
        return replace(self, seed=seed, fingerprint=self._hash_with(f"seed {seed}"))

    def at_size(self, size: int) -> TaskInfo:
        """Return a copy of the task on embeddings cut to a size, with its own fingerprint."""
        return replace(self, size=size, fingerprint=self._hash_with(str(size)))

    def _hash_with(self, variant: str) -> str:
        if not self.fingerprint:
            return ""
        return hashlib.sha256(f"{self.fingerprint}\0{variant}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class TaskScore:
    """A model's main score on one task, and the evaluator's own full result.

    The score is a share (0 to 1), and higher is better. If the metric is in `LESS_IS_BETTER`, the score is
    the loss.
    """

    task: TaskInfo
    score: float
    units: Units | None = None
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """An evaluator, which scores models on tasks.

    The calling step stores each score under the model's content hash and the task's fingerprint, and asks
    only for scores that it does not have.
    """

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        """Return the tasks that can be scored, in order, without loading a model.

        Raises:
            DataError: if the data cannot be used.
        """
        raise NotImplementedError

    def check(self, context: Preflight) -> Iterable[Problem]:
        """Return problems that can be found before a run."""
        return ()

    def check_model(self, checkpoint: Path | None, context: Preflight) -> Iterable[str]:
        """Return reasons why the evaluator cannot score a model, from configs alone.

        `checkpoint` is None if the model does not exist yet; then the options alone are looked at.
        """
        return ()

    def check_together(self, checkpoints: Sequence[Path]) -> Iterable[str]:
        """Return reasons why the scores of these checkpoints are not comparable, for notes on the scores."""
        return ()

    def preview(self, context: Preflight) -> Sequence[TaskInfo] | None:
        """Return the tasks known before a run; None if they are unknown or `check` finds problems.

        Names, kinds, metrics and splits are those that `plan` will return; domains and fingerprints may be
        missing.
        """
        return None

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        """Yield the scores of one model on some tasks, one by one, and report progress.

        The model is complete: the folder of an adapted model contains the base with the adapter applied.
        """
        raise NotImplementedError

    def texts(self, task: TaskInfo, workspace: Workspace) -> Iterable[tuple[TextRole, str]] | None:
        """Return the texts of a task, as queries or documents; None if they are not available.

        All texts of tasks without documents, such as pairs of sentences, count as queries. Texts that a
        classifier is fitted on are not returned. A text may be returned more than once.

        Raises:
            DataError: if the data cannot be read.
        """
        return None
