"""One fine-tuning: a model and a fresh head, trained on a task and tested at its best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from emberge import shuffled, stable_seed
from emberge.contracts import TokenEncoder
from emberge.training import SaveClock
from torch import Tensor, nn

from emberge_evaluate.fine_tuning.course import Course
from emberge_evaluate.fine_tuning.heads import mask_of
from emberge_evaluate.fine_tuning.kinds import Input, Kind
from emberge_evaluate.fine_tuning.metrics import score
from emberge_evaluate.fine_tuning.task_rows import TaskRow

__all__ = ["Schedule", "Tuned", "Tuning", "batches"]

_CLIP = 1.0  # norm of gradients, as transformers' Trainer cuts them


@dataclass(frozen=True)
class Schedule:
    """Options of one fine-tuning; `patience` is in epochs, `eval_steps` between looks at development data."""

    steps: int
    batch_size: int
    learning_rate: float
    warmup: float
    weight_decay: float
    eval_steps: int
    patience: float | None
    seed: int
    autocast: torch.dtype | None = None

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, from 0: it rises from 0 in the warm-up, then falls to 0."""
        rising = math.ceil(self.warmup * self.steps)
        if step < rising:
            return self.learning_rate * step / rising
        return self.learning_rate * (self.steps - step) / (self.steps - rising)

    def is_over(self, since: int, epoch: int) -> bool:
        """Return whether so many steps since the best state end a training; `epoch` counts steps."""
        return self.patience is not None and since >= self.patience * epoch


@dataclass(frozen=True)
class Tuned:
    """Result of a fine-tuning: the best score on development data, its step, and predictions by test set.

    `curve` has [step, mean loss since the last point, score on development data]. `diverged` is the step
    whose loss or predictions were not finite: such a training ended there, and has no result.
    """

    dev: float
    step: int
    curve: Sequence[tuple[int, float, float]]
    predictions: Mapping[str, Sequence[Any]]
    diverged: int | None = None


class _NotFiniteError(Exception):
    """A loss or a prediction that is no finite number, at a step from 1."""


class Tuning:
    """A model with a fresh head on a task; `progress` gets the steps done."""

    def __init__(
        self,
        encoder: TokenEncoder,
        kind: Kind,
        schedule: Schedule,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.encoder, self.kind, self.schedule, self.progress = encoder, kind, schedule, progress
        weight = next(encoder.module.parameters())
        self.device = weight.device
        width = _width(encoder)
        torch.manual_seed(stable_seed(schedule.seed, "head"))
        self.head = kind.head(width).to(self.device)
        self.modules = nn.ModuleList([encoder.module, self.head])

    def run(self, states: Path | None = None, clock: SaveClock | None = None) -> Tuned:
        """Train, go back to the state that was best on development data, and test it.

        States are kept in the folder `states`, and a training that was killed goes on from the newest one.
        One whose loss or predictions are not finite ends there, without a result.
        """
        data, plan = self.kind.data, self.schedule
        inputs = self.kind.inputs(self.encoder, data.train, training=True)
        watched = self.kind.inputs(self.encoder, data.dev, training=False)
        trained = {n: p for n, p in self.modules.named_parameters() if p.requires_grad}
        optimizer = torch.optim.AdamW(
            trained.values(), lr=plan.learning_rate, weight_decay=plan.weight_decay
        )
        course = Course() if states is None else Course.load(states, trained, optimizer)
        clock = clock or SaveClock()
        epoch = math.ceil(len(inputs) / plan.batch_size)
        drawn = batches(len(inputs), plan.batch_size, plan.steps, plan.seed)
        for rows in islice(drawn, course.step, None):
            loss = self._step([inputs[row] for row in rows], course.step, optimizer)
            course.step += 1
            course.losses.append(loss)
            self.progress(course.step)
            try:
                _require_finite(loss)
                if course.step % plan.eval_steps == 0 or course.step == plan.steps:
                    course.look(self._score(data.dev, watched), trained)
                    if plan.is_over(course.step - course.best, epoch):
                        break
            except _NotFiniteError:
                return Tuned(course.dev, course.step, course.curve, {}, diverged=course.step)
            if states is not None and clock.is_due():
                with clock.saving():
                    course.save(states, trained, optimizer)
        course.restore_best(trained)
        tests = {
            name: self.predict(rows, self.kind.inputs(self.encoder, rows, training=False))
            for name, rows in data.test.items()
        }
        return Tuned(course.dev, course.best, course.curve, tests)

    def _step(self, batch: Sequence[Input], step: int, optimizer: torch.optim.Optimizer) -> float:
        """Take an optimizer step, and return the loss before it."""
        self.modules.train()
        torch.manual_seed(stable_seed(self.schedule.seed, "step", step))
        logits, mask = self._logits(batch)
        loss = self.kind.loss(logits, batch, mask)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        for group in optimizer.param_groups:
            group["lr"] = self.schedule.rate(step)
            nn.utils.clip_grad_norm_(group["params"], _CLIP)
        optimizer.step()
        return float(loss.detach())

    def predict(self, rows: Sequence[TaskRow], inputs: Sequence[Input]) -> list[Any]:
        """Return a prediction for each row; texts of like length run together."""
        self.modules.eval()
        sizes = [max(len(text.ids) for text in one.texts) for one in inputs]
        order = sorted(range(len(inputs)), key=lambda row: -sizes[row])
        found: dict[int, Any] = {}
        size = self.schedule.batch_size
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            batch = [inputs[row] for row in chosen]
            with torch.inference_mode():
                logits, mask = self._logits(batch)
                _require_finite(float(logits.sum(dtype=torch.float64)))
                asked = [rows[row] for row in chosen]
                predicted = self.kind.predictions(logits, batch, mask, asked)
            found |= dict(zip(chosen, predicted, strict=True))
        return [found[row] for row in range(len(rows))]

    def _score(self, rows: Sequence[TaskRow], inputs: Sequence[Input]) -> float:
        data = self.kind.data
        return score(data.entry.scored_by, data.classes, rows, self.predict(rows, inputs))

    def _logits(self, batch: Sequence[Input]) -> tuple[Tensor, Tensor]:
        """Return the head's logits of all texts of a batch, and the mask of their tokens."""
        features = self.encoder.collate([text for one in batch for text in one.texts])
        features = {name: value.to(self.device) for name, value in features.items()}
        kind = self.schedule.autocast
        with torch.autocast(self.device.type, dtype=kind, enabled=kind is not None):
            mask = mask_of(features)
            return self.head(self.encoder.states(features), mask), mask


def _require_finite(value: float) -> None:
    if not math.isfinite(value):
        raise _NotFiniteError


def batches(count: int, size: int, steps: int, seed: int) -> Iterator[list[int]]:
    """Yield the rows of each step's batch: every epoch all rows in a new order, the last batch smaller."""
    step = epoch = 0
    while step < steps:
        order = shuffled(count, stable_seed(seed, "order", epoch)).tolist()
        for start, end in pairwise([*range(0, count, size), count]):
            if step < steps:
                yield order[start:end]
            step += 1
        epoch += 1


def _width(encoder: TokenEncoder) -> int:
    """Return the size of an encoder's hidden states."""
    (empty,) = encoder.tokenise([""], prompt="", max_length=None)
    device = next(encoder.module.parameters()).device
    features = {n: value.to(device) for n, value in encoder.collate([empty]).items()}
    with torch.inference_mode():
        return int(encoder.states(features).shape[-1])
