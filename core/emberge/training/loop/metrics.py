"""Metrics of a training and of its model, logged during the training without making a GPU wait."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from emberge.contracts import AuxiliaryMetrics, Figure
from emberge.encoding import PassResult
from emberge.errors import TrainingError
from emberge.ranks import SINGLE_RANK, RankGroup
from emberge.training.batch_plan import PlannedBatch

# Number of points that a training logs, if no option says another interval.
LOGGED_POINTS = 500
# Number of points that are kept; when there are twice as many, every second point is dropped.
MODEL_POINTS = 25
# Number of a failed batch's rows that its message names.
ROWS_NAMED = 8
# Number of steps that a GPU may be behind before the host waits for it.
READ_DELAY = 16


# Function that takes a metric's name and value and the optimizer step.
LogMetric = Callable[[str, float, int], None]


@dataclass(eq=False)
class ModelMetrics:
    """Sums of a model's own counts since the last logged point, and the values logged at all points."""

    warn: Callable[[str], None] = lambda _: None
    points: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    _sums: Tensor | None = None
    _reader: AuxiliaryMetrics | None = None
    _warned: set[str] = field(default_factory=set)

    def add(self, counts: Tensor, reader: AuxiliaryMetrics) -> None:
        """Add a step's `counts` [n], which are on the CPU."""
        self._sums = counts if self._sums is None else self._sums + counts
        self._reader = reader

    def log(self, at: int) -> Mapping[str, float]:
        """Return the values since the previous point, and keep them as the values of step `at`."""
        if self._sums is None or self._reader is None:
            return {}
        values = dict(self._reader.values(self._sums))
        for message in self._reader.warnings(self._sums):
            if message not in self._warned:
                self._warned.add(message)
                self.warn(message)
        self._sums = None
        self.points.append((at, values))
        if len(self.points) == 2 * MODEL_POINTS:
            self.points = self.points[1::2]
        return values

    def figures(self) -> tuple[Figure, ...]:
        """Return the model's figures of all points."""
        if self._reader is None or not self.points:
            return ()
        return tuple(self._reader.figures(self.points))

    def to_facts(self) -> dict[str, Any]:
        """Return the sums and points that a resumed training needs, as plain values."""
        sums = None if self._sums is None else self._sums.tolist()
        return {"points": self.points, "sums": sums, "warned": sorted(self._warned)}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore the sums and points that `to_facts` returned."""
        self.points = [(step, dict(values)) for step, values in facts["points"]]
        if facts["sums"] is not None:
            self._sums = torch.tensor(facts["sums"], dtype=torch.float64)
        self._warned = set(facts["warned"])


@dataclass(eq=False)
class _PendingStep:
    """Numbers of a step that are being copied from the device."""

    batch: PlannedBatch
    result: PassResult
    learning_rate: float
    values: Tensor
    arrived: Any
    ended: float


@dataclass(eq=False)
class _PointSums:
    """Sums over the steps since the last logged point."""

    began: float
    losses_by_dataset: dict[str, list[float]] = field(default_factory=dict)
    losses_by_task_kind: dict[str, list[float]] = field(default_factory=dict)
    tokens: int = 0
    padded_tokens: int = 0
    kept_tokens: int = 0

    def add(self, step: _PendingStep, loss: float, tasks: Mapping[str, str]) -> None:
        """Add a step; `tasks` maps datasets to their kinds of task."""
        self.losses_by_dataset.setdefault(step.batch.name, []).append(loss)
        for task in dict.fromkeys(tasks[part.dataset] for part in step.batch.parts):
            self.losses_by_task_kind.setdefault(task, []).append(loss)
        self.tokens += step.result.tokens
        self.padded_tokens += step.result.padded_tokens
        self.kept_tokens += step.result.kept_tokens


@dataclass(eq=False)
class MetricLog:
    """Losses of every step, and the metrics logged from them.

    On a GPU, the numbers of a step are copied while later steps run, and are read `READ_DELAY` steps later,
    when the copy has long ended; `READ_DELAY` is equal on every rank. On other devices they are read when the
    next step has been started. `tasks` maps datasets to their kinds of task. When a point is logged, counts
    are summed over all `ranks`. `model` has the model's own numbers. Speeds are measured by `clock`, in
    seconds. `states` is the folder of the training's states, for messages.
    """

    steps: int
    metric: LogMetric
    every: int
    tasks: Mapping[str, str]
    states: str = ""
    ranks: RankGroup = SINGLE_RANK
    model: ModelMetrics = field(default_factory=ModelMetrics)
    losses: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    examples: int = 0
    clock: Callable[[], float] = time.monotonic
    note: str = ""
    """The newest numbers in a few words, for the progress line."""
    _waiting: deque[_PendingStep] = field(default_factory=deque)
    _since: _PointSums = field(init=False)
    _last: tuple[_PendingStep, float] | None = None
    _newest: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._since = _PointSums(self.clock())

    def add(
        self, batch: PlannedBatch, result: PassResult, gradient_norm: Tensor, learning_rate: float
    ) -> None:
        """Add the numbers of a step that was just started, and read the numbers of earlier steps."""
        values = torch.stack([result.loss, gradient_norm.to(result.loss)])
        if result.counts is not None and result.metrics is not None:
            values = torch.cat([values.to(result.counts), result.counts.flatten()])
        arrived, most_waiting = None, 1
        if values.device.type == "cuda":
            host_values = torch.empty(len(values), dtype=values.dtype, pin_memory=True)
            host_values.copy_(values, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
            values, most_waiting = host_values, max(1, min(self.every, READ_DELAY))
        step = _PendingStep(batch, result, learning_rate, values, arrived, self.clock())
        self._waiting.append(step)
        while len(self._waiting) > most_waiting:
            self._read_step(self._waiting.popleft())

    def to_facts(self) -> dict[str, Any]:
        """Return the losses and sums that a resumed training needs, as plain values."""
        return {
            "losses": self.losses,
            "names": self.names,
            "examples": self.examples,
            "model": self.model.to_facts(),
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore the losses and sums that `to_facts` returned."""
        self.losses, self.names = list(facts["losses"]), list(facts["names"])
        self.examples = facts["examples"]
        self.model.restore(facts["model"])

    def flush_losses(self) -> None:
        """Wait for all numbers that are still being copied from the device, and read them.

        Raises:
            TrainingError: if a loss or gradient is not finite.
        """
        while self._waiting:
            self._read_step(self._waiting.popleft())

    def finish(self) -> None:
        """Read all numbers, and log those that were not logged yet because the training ends early."""
        self.flush_losses()
        if self._last is not None and self._since.losses_by_dataset:
            self._log(*self._last)

    def leave_out(self, seconds: float) -> None:
        """Exclude `seconds` from the time from which speed is computed."""
        self._since.began += seconds

    def _read_step(self, step: _PendingStep) -> None:
        if step.arrived is not None:
            step.arrived.synchronize()
        loss, norm = (float(v) for v in step.values[:2])
        if not (math.isfinite(loss) and math.isfinite(norm)):
            quantity = "gradient" if math.isfinite(loss) else "loss"
            raise TrainingError(self._describe_failure(step.batch, quantity), step.batch.step + 1)
        self.losses.append(loss)
        self.names.append(step.batch.name)
        self.examples += step.batch.size
        self._since.add(step, loss, self.tasks)
        if step.result.metrics is not None and len(step.values) > 2:
            self.model.add(step.values[2:], step.result.metrics)
        self._last = step, norm
        if step.batch.step % self.every == self.every - 1 or step.batch.step + 1 == self.steps:
            self._log(step, norm)
        self._update_note(loss)

    def _log(self, step: _PendingStep, norm: float) -> None:
        sums, step_number = self._since, step.batch.step + 1
        values = [v for losses in sums.losses_by_dataset.values() for v in losses]
        counts = [sums.tokens, sums.padded_tokens, sums.kept_tokens]
        token_counts = torch.tensor(counts, dtype=torch.float64)
        tokens, padded, kept_tokens = self.ranks.sum_over_ranks(token_counts).tolist()
        metrics = {"loss": _mean(values)}
        if len(set(self.names)) > 1:
            metrics |= {
                f"loss/{name}": _mean(each) for name, each in sums.losses_by_dataset.items()
            }
            metrics |= {
                f"task_loss/{task}": _mean(each) for task, each in sums.losses_by_task_kind.items()
            }
        metrics |= {
            "grad_norm": norm,
            "tokens_per_second": tokens / max(step.ended - sums.began, 1e-9),
            "padding_share": 1 - tokens / max(padded, 1),
            "kept_share": kept_tokens / max(padded, 1),
            **measure_memory_used(step.result.loss.device),
            "examples": float(self.examples),
            "learning_rate": step.learning_rate,
            **self.model.log(step_number),
        }
        for name, value in metrics.items():
            self.metric(name, value, step_number)
        self._newest |= metrics
        self._since = _PointSums(step.ended)

    def _update_note(self, loss: float) -> None:
        """Update the note: the step's loss, and the newest values of other metrics."""
        newest, parts = self._newest, [f"loss {loss:.4g}"]
        if newest:
            memory = newest.get("gpu_memory_gib", newest["memory_gib"])
            parts.append(f"{newest['tokens_per_second']:,.0f} tokens/s")
            parts.append(f"{newest['padding_share']:.0%} padding, {memory:.1f} GiB")
        self.note = ", ".join(parts)

    def _describe_failure(self, batch: PlannedBatch, what: str) -> str:
        rows = [int(r) + 1 for part in batch.parts for r in part.rows]
        named = ", ".join(map(str, rows[:ROWS_NAMED])) + (", …" if len(rows) > ROWS_NAMED else "")
        state_note = f"; the state before it is kept in {self.states}" if self.states else ""
        return (
            f"the {what} of step {batch.step + 1} is not finite (dataset '{batch.name}', rows {named}); "
            f"lower learning_rate, use precision: float32, or look at these rows{state_note}"
        )


def measure_memory_used(device: torch.device) -> dict[str, float]:
    """Return the peak memory that this process has used, of host and GPU, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = {"memory_gib": peak * (1 if sys.platform == "darwin" else 1024) / 2**30}
    if device.type == "cuda":
        memory["gpu_memory_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return memory


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
