"""Fine-tuning of a model with a new head on one task, tested with its best state."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emberge import Encoder, TrainingError, draw_order, make_seed
from emberge.encoding import PassResult, compute_token_states, find_device, set_torch_seed
from emberge.ranks import SINGLE_RANK
from emberge.training import (
    EarlyStopping,
    FitOptions,
    FitResult,
    PlannedBatch,
    PlannedPart,
    SaveClock,
    Trainee,
    train,
)
from numpy.typing import NDArray
from torch import Tensor, nn

from emberge_fine_tuned.head_tasks import HeadBatch, HeadTask, TaskInput
from emberge_fine_tuned.metrics import compute_score
from emberge_fine_tuned.options import Setting, TuningOptions

_DEV_SCORINGS = 20  # scorings on development data in a training


@dataclass(frozen=True)
class TuningResult:
    """Result of a fine-tuning: the best score on development data, its step, and predictions by test set.

    `curve` has [step, mean loss since the last point, score on development data]. `diverged` is the step
    whose loss or predictions were not finite: the training ended there and has no result.
    """

    dev: float
    step: int
    curve: Sequence[tuple[int, float, float]]
    predictions: Mapping[str, Sequence[Any]]
    diverged: int | None = None


class Tuning(Trainee):
    """A model with a fresh head on a task; `progress` gets the steps done, of all steps."""

    ranks = SINGLE_RANK
    warms_up_from_zero = True

    def __init__(
        self,
        head_task: HeadTask,
        options: TuningOptions,
        setting: Setting,
        seed: int,
        progress: Callable[[int, int, str], None] = lambda *_: None,
    ) -> None:
        self.head_task, self.progress = head_task, progress
        self.options, self.setting, self.seed = options, setting, seed
        self.device = find_device(head_task.encoder)
        with torch.random.fork_rng():
            torch.manual_seed(make_seed(seed, "head"))
            self.head = head_task.build_head(_measure_width(head_task.encoder)).to(self.device)
        self.modules = nn.ModuleList([head_task.encoder.module, self.head])
        self._train = head_task.read_inputs(head_task.data.train, training=True)
        self._dev = head_task.read_inputs(head_task.data.dev, training=False)

    def run(self, work: Path, clock: SaveClock | None = None) -> TuningResult:
        """Train, restore the state with the best development score, and return its test predictions.

        States are saved in the folder `work`, and an interrupted training resumes from the newest one. A
        training whose loss or predictions are not finite stops without a result. Gradients are cut as
        transformers' Trainer cuts them.
        """
        fit_options = FitOptions(
            learning_rate=self.setting.learning_rate,
            warmup_ratio=self.options.warmup,
            schedule="linear",
            weight_decay=self.options.weight_decay,
            max_grad_norm=1.0,
        )
        try:
            trained = train(
                self,
                fit_options,
                folder=None,
                work=work,
                early_stopping=self._build_early_stopping(),
                progress=lambda done, *_: self.progress(done, self.steps, "steps"),
                clock=clock,
            )
        except TrainingError as error:
            return TuningResult(0.0, 0, (), {}, diverged=error.step)
        best = trained.result_step
        predictions = {
            name: self.predict(self.head_task.read_inputs(rows, training=False), best)
            for name, rows in self.head_task.data.test.items()
        }
        return TuningResult(dict(trained.scores)[best], best, _build_curve(trained), predictions)

    def _build_early_stopping(self) -> EarlyStopping:
        between = min(self.steps, self.options.eval_steps or max(1, self.steps // _DEV_SCORINGS))
        patience = self.options.patience
        scorings = None if patience is None else max(1, math.ceil(patience * self._epoch / between))
        return EarlyStopping(between, scorings)

    @functools.cached_property
    def parameters(self) -> Mapping[str, Tensor]:
        return {name: p for name, p in self.modules.named_parameters() if p.requires_grad}

    def decays(self, parameter: Tensor) -> bool:
        return True

    @property
    def steps(self) -> int:
        return self.options.count_steps(len(self._train), self.setting.batch_size)

    @property
    def _epoch(self) -> int:
        return math.ceil(len(self._train) / self.setting.batch_size)

    @property
    def tasks(self) -> Mapping[str, str]:
        entry = self.head_task.data.entry
        return {entry.name: entry.head}

    def plan_batch(self, step: int) -> PlannedBatch:
        rows = draw_batch_rows(len(self._train), self.setting.batch_size, step, self.seed)
        part = PlannedPart(self.head_task.data.entry.name, rows, in_batch=False)
        return PlannedBatch(step, step // self._epoch, stage=0, parts=(part,))

    def backward(self, batch: PlannedBatch) -> PassResult:
        self.modules.train()
        set_torch_seed(self.device, make_seed(self.seed, "step", batch.step))
        read = self._read([self._train[row] for row in batch.parts[0].rows])
        loss = self.head_task.compute_loss(read)
        loss.backward()  # type: ignore[no-untyped-call]
        tokens = sum(len(text.ids) for item in read.inputs for text in item.texts)
        return PassResult(loss.detach(), tokens, read.mask.numel(), kept_tokens=read.mask.numel())

    def score(self, step: int) -> float:
        data = self.head_task.data
        return compute_score(data, data.dev, self.predict(self._dev, step))

    def predict(self, inputs: Sequence[TaskInput], step: int) -> list[Any]:
        """Return a prediction for each row with the weights of a step; texts of similar length share a batch.

        Raises:
            TrainingError: for predictions that are not finite.
        """
        self.modules.eval()
        sizes = [max(len(text.ids) for text in item.texts) for item in inputs]
        order = sorted(range(len(inputs)), key=lambda row: -sizes[row])
        predictions: list[Any] = [None] * len(inputs)
        for start in range(0, len(order), self.setting.batch_size):
            rows = order[start : start + self.setting.batch_size]
            with torch.inference_mode():
                read = self._read([inputs[row] for row in rows])
                if not math.isfinite(float(read.logits.sum(dtype=torch.float64))):
                    raise TrainingError(f"predictions after step {step} are not finite", step)
                for row, prediction in zip(rows, self.head_task.predict(read), strict=True):
                    predictions[row] = prediction
        return predictions

    def _read(self, inputs: Sequence[TaskInput]) -> HeadBatch:
        """Return the head's outputs for all texts of a batch."""
        texts = [text for item in inputs for text in item.texts]
        states, mask = compute_token_states(self.head_task.encoder, texts)
        return HeadBatch(inputs, self.head(self.head_task.pool(states, mask)), mask)


def _measure_width(encoder: Encoder) -> int:
    """Return the size of an encoder's hidden states, by running it on an empty text."""
    with torch.inference_mode():
        empty_text = encoder.tokenise([""], prompt="", max_length=None)
        return compute_token_states(encoder, empty_text)[0].shape[-1]


def draw_batch_rows(count: int, size: int, step: int, seed: int) -> NDArray[np.int64]:
    """Return the row numbers of a step's batch; each epoch has all rows in a new order."""
    epoch, number = divmod(step, math.ceil(count / size))
    order = _shuffle_rows(count, make_seed(seed, "order", epoch))
    return order[number * size : (number + 1) * size]


@functools.lru_cache(maxsize=2)
def _shuffle_rows(count: int, seed: int) -> NDArray[np.int64]:
    return np.asarray(draw_order(count, seed), np.int64)


def _build_curve(trained: FitResult) -> list[tuple[int, float, float]]:
    """Return (step, mean loss since the last point, score) of each development score."""
    points, before = [], 0
    for step, dev in trained.scores:
        losses = [loss for _, loss in trained.step_losses[before:step]]
        points.append((step, sum(losses) / len(losses), dev))
        before = step
    return points
