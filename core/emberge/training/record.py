"""What a training says while it runs, without making a GPU wait for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from emberge.errors import EmbergeError
from emberge.training.encode import Passed
from emberge.training.plan import PlannedBatch

__all__ = ["Record", "TrainingError"]

POINTS = 500
CURVE_POINTS = 200
ROWS_NAMED = 8

Metric = Callable[..., None]


class TrainingError(EmbergeError):
    """A training went wrong in a way that its data or settings explain."""


@dataclass(eq=False)
class _Waiting:
    """Numbers of a step on their way from the device."""

    batch: PlannedBatch
    passed: Passed
    learning_rate: float
    values: Tensor
    arrived: Any
    ended: float


@dataclass(eq=False)
class Record:
    """Losses of every step, and the metrics that are logged of them.

    A step's numbers are read when the next one has been started.
    """

    steps: int
    metric: Metric
    every: int
    where: str = ""
    losses: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    examples: int = 0
    _waiting: _Waiting | None = None
    _since: dict[str, list[float]] = field(default_factory=dict)
    _tokens: list[int] = field(default_factory=lambda: [0, 0, 0])
    _clock: float = field(default_factory=time.monotonic)

    def add(
        self, batch: PlannedBatch, passed: Passed, gradient_norm: Tensor, learning_rate: float
    ) -> None:
        """Take the numbers of a step that was just started, and read those of the one before."""
        values = torch.stack([passed.loss.float(), gradient_norm.float().to(passed.loss.device)])
        arrived = None
        if values.device.type == "cuda":
            host = torch.empty(2, pin_memory=True)
            host.copy_(values, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
            values = host
        before, self._waiting = (
            self._waiting,
            _Waiting(batch, passed, learning_rate, values, arrived, time.monotonic()),
        )
        if before is not None:
            self._take(before)

    def settle(self) -> None:
        """Read what is still on its way.

        Raises:
            TrainingError: for a loss or gradient that is no number.
        """
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._take(waiting)

    def _take(self, step: _Waiting) -> None:
        if step.arrived is not None:
            step.arrived.synchronize()
        loss, norm = (float(v) for v in step.values)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainingError(self._complaint(step.batch, "loss" if loss != loss else "gradient"))
        self.losses.append(loss)
        self.names.append(step.batch.name)
        self.examples += step.batch.size
        self._since.setdefault(step.batch.name, []).append(loss)
        self._tokens[0] += step.passed.tokens
        self._tokens[1] += step.passed.padded
        self._tokens[2] += step.passed.kept
        if step.batch.step % self.every == self.every - 1 or step.batch.step + 1 == self.steps:
            self._log(step, norm)

    def _log(self, step: _Waiting, norm: float) -> None:
        now, at = step.ended, step.batch.step + 1
        values = [v for found in self._since.values() for v in found]
        tokens, padded, kept = self._tokens
        self.metric("loss", sum(values) / len(values), at)
        if len(self._since) > 1 or len(set(self.names)) > 1:
            for name, found in self._since.items():
                self.metric(f"loss/{name}", sum(found) / len(found), at)
        self.metric("learning_rate", step.learning_rate, at)
        self.metric("grad_norm", norm, at)
        self.metric("tokens_per_second", tokens / max(now - self._clock, 1e-9), at)
        self.metric("padding_share", 1 - tokens / max(padded, 1), at)
        self.metric("kept_share", kept / max(padded, 1), at)
        self.metric("examples", float(self.examples), at)
        self._since, self._tokens, self._clock = {}, [0, 0, 0], now

    def _complaint(self, batch: PlannedBatch, what: str) -> str:
        rows = [int(r) + 1 for part in batch.parts for r in part.rows]
        named = ", ".join(map(str, rows[:ROWS_NAMED])) + (", …" if len(rows) > ROWS_NAMED else "")
        kept = f"; the state before it is kept in {self.where}" if self.where else ""
        return (
            f"the {what} of step {batch.step + 1} is not finite (dataset '{batch.name}', rows {named}); "
            f"lower learning_rate, use precision: float32, or look at these rows{kept}"
        )

    @property
    def last(self) -> float | None:
        """The newest loss that was read."""
        return self.losses[-1] if self.losses else None

    def final_losses(self) -> dict[str, float]:
        """Means over the last tenth of each dataset's steps, at least one."""
        found: dict[str, list[float]] = {}
        for name, loss in zip(self.names, self.losses, strict=True):
            found.setdefault(name, []).append(loss)
        tails = {name: values[-max(1, len(values) // 10) :] for name, values in found.items()}
        return {name: sum(values) / len(values) for name, values in tails.items()}

    def curve(self) -> tuple[tuple[int, float], ...]:
        """Up to 200 points: (step, mean loss since the point before)."""
        width = max(1, math.ceil(len(self.losses) / CURVE_POINTS))
        pieces = [self.losses[i : i + width] for i in range(0, len(self.losses), width)]
        ends = [min(i + width, len(self.losses)) for i in range(0, len(self.losses), width)]
        return tuple((end, sum(p) / len(p)) for end, p in zip(ends, pieces, strict=True))

    @staticmethod
    def interval(steps: int) -> int:
        """Steps between two logged points, for about 500 of them."""
        return max(1, steps // POINTS)
