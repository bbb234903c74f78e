"""One fine-tuning: a model and a fresh head, trained on a task and tested at its best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from emberge import LocatesTokens, shuffled, stable_seed
from torch import Tensor, nn

from emberge_evaluate.fine_tuning.heads import mask_of
from emberge_evaluate.fine_tuning.kinds import Input, Kind
from emberge_evaluate.fine_tuning.metrics import score
from emberge_evaluate.fine_tuning.task_rows import TaskRow

__all__ = ["Schedule", "Tuned", "Tuning", "batches"]

_CLIP = 1.0  # norm of gradients, as transformers' Trainer cuts them
_WORST = -2.0  # below every metric


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


@dataclass(frozen=True)
class Tuned:
    """Result of a fine-tuning: the best score on development data, its step, and predictions by test set.

    `curve` has [step, mean loss since the last point, score on development data].
    """

    dev: float
    step: int
    curve: Sequence[tuple[int, float, float]]
    predictions: Mapping[str, Sequence[Any]]


class Tuning:
    """A model with a fresh head on a task; `progress` gets the steps done."""

    def __init__(
        self,
        encoder: LocatesTokens,
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

    def run(self) -> Tuned:
        """Train, go back to the state that was best on development data, and test it."""
        data, plan = self.kind.data, self.schedule
        inputs = self.kind.inputs(self.encoder, data.train, training=True)
        watched = self.kind.inputs(self.encoder, data.dev, training=False)
        best, curve = _Best(), []
        epoch = math.ceil(len(inputs) / plan.batch_size)
        losses: list[float] = []
        for step, loss in enumerate(self._train(inputs), start=1):
            self.progress(step)
            losses.append(loss)
            if not math.isfinite(loss):
                break  # too high a learning rate
            if step % plan.eval_steps == 0 or step == plan.steps:
                dev = self._score(data.dev, watched)
                curve.append((step, sum(losses) / len(losses), dev))
                losses.clear()
                best.look(dev, step, self._trained())
                if plan.patience is not None and step - best.step >= plan.patience * epoch:
                    break
        best.restore(self._trained())
        tests = {
            name: self.predict(rows, self.kind.inputs(self.encoder, rows, training=False))
            for name, rows in data.test.items()
        }
        return Tuned(best.dev, best.step, curve, tests)

    def _train(self, inputs: Sequence[Input]) -> Iterator[float]:
        """Take optimizer steps, and yield the loss of each."""
        from transformers import get_linear_schedule_with_warmup

        plan = self.schedule
        weights = [p for p in self.modules.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            weights, lr=plan.learning_rate, weight_decay=plan.weight_decay
        )
        pace = get_linear_schedule_with_warmup(
            optimizer, math.ceil(plan.warmup * plan.steps), plan.steps
        )
        for step, rows in enumerate(batches(len(inputs), plan.batch_size, plan.steps, plan.seed)):
            self.modules.train()
            batch = [inputs[row] for row in rows]
            torch.manual_seed(stable_seed(plan.seed, "step", step))
            logits, mask = self._logits(batch)
            loss = self.kind.loss(logits, batch, mask)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(weights, _CLIP)
            optimizer.step()
            pace.step()
            yield float(loss.detach())

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

    def _trained(self) -> dict[str, Tensor]:
        return {n: p for n, p in self.modules.named_parameters() if p.requires_grad}


class _Best:
    """The state that was best on development data."""

    def __init__(self) -> None:
        self.dev, self.step = _WORST, 0
        self._weights: dict[str, Tensor] = {}

    def look(self, dev: float, step: int, weights: Mapping[str, Tensor]) -> None:
        """Keep a copy of the weights where they are better than those before."""
        if dev > self.dev:
            self.dev, self.step = dev, step
            self._weights = {n: p.detach().to("cpu", copy=True) for n, p in weights.items()}

    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Put the best weights back."""
        with torch.no_grad():
            for name, kept in self._weights.items():
                weights[name].copy_(kept)


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


def _width(encoder: LocatesTokens) -> int:
    """Return the size of an encoder's hidden states."""
    (empty,) = encoder.tokenise([""], prompt="", max_length=None)
    device = next(encoder.module.parameters()).device
    features = {n: value.to(device) for n, value in encoder.collate([empty]).items()}
    with torch.inference_mode():
        return int(encoder.states(features).shape[-1])
