"""Fine-tuning of a model with a new head on one task, tested with its best state."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emberge import shuffled, stable_seed
from emberge.contracts import TokenEncoder
from emberge.encoding import PassResult, device_of, token_states
from emberge.files import write_text
from emberge.ranks import ALONE
from emberge.training import (
    EarlyStopping,
    FitOptions,
    FitResult,
    PlannedBatch,
    PlannedPart,
    SaveClock,
    Trainee,
    TrainingError,
    train,
)
from numpy.typing import NDArray
from torch import Tensor, nn

from emberge_evaluate.fine_tuning.kinds import Kind, TaskInput
from emberge_evaluate.fine_tuning.metrics import score
from emberge_evaluate.fine_tuning.task_rows import TaskRow
from emberge_evaluate.fine_tuning.tuning_options import TuningLength

_LOOKS = 20  # looks at development data in a training


@dataclass(frozen=True)
class TuningSchedule:
    """Options of one fine-tuning; `patience` is in epochs.

    `eval_steps` are between looks at development data; None means a twentieth of the steps.
    """

    length: TuningLength
    batch_size: int
    learning_rate: float
    warmup: float
    weight_decay: float
    eval_steps: int | None
    patience: float | None
    seed: int
    autocast: torch.dtype | None = None
    test_curves: bool = False

    @property
    def fit_options(self) -> FitOptions:
        """Options of the training loop; gradients are cut as transformers' Trainer cuts them."""
        return FitOptions(
            learning_rate=self.learning_rate,
            warmup_ratio=self.warmup,
            schedule="linear",
            weight_decay=self.weight_decay,
            max_grad_norm=1.0,
        )

    def early_stopping(self, rows: int) -> EarlyStopping:
        """Return the rule for looks at development data in a training on so many rows."""
        steps = self.length.count_steps(rows, self.batch_size)
        between = min(steps, self.eval_steps or max(1, steps // _LOOKS))
        epoch = math.ceil(rows / self.batch_size)
        patience = self.patience
        looks = None if patience is None else max(1, math.ceil(patience * epoch / between))
        return EarlyStopping(between, looks)


@dataclass(frozen=True)
class Tuned:
    """Result of a fine-tuning: the best score on development data, its step, and predictions by test set.

    `curve` has [step, mean loss since the last point, score on development data]. `diverged` is the step
    whose loss or predictions were not finite: the training ended there and has no result. `test_curve` has
    the scores by test set at the same steps, if they were wanted.
    """

    dev: float
    step: int
    curve: Sequence[tuple[int, float, float]]
    predictions: Mapping[str, Sequence[Any]]
    diverged: int | None = None
    test_curve: Sequence[tuple[int, Mapping[str, float]]] = ()


class Tuning(Trainee):
    """A model with a fresh head on a task; `progress` gets the steps done."""

    ranks = ALONE
    warms_up_from_zero = True

    def __init__(
        self,
        encoder: TokenEncoder,
        kind: Kind,
        schedule: TuningSchedule,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.encoder, self.kind, self.schedule, self.progress = encoder, kind, schedule, progress
        self.device = device_of(encoder)
        width = _find_state_width(encoder)
        with torch.random.fork_rng():
            torch.manual_seed(stable_seed(schedule.seed, "head"))
            self.head = kind.head(width).to(self.device)
        self.modules = nn.ModuleList([encoder.module, self.head])
        self._train = kind.inputs(encoder, kind.data.train, training=True)
        self._dev = kind.inputs(encoder, kind.data.dev, training=False)
        self._tests = {
            name: kind.inputs(encoder, rows, training=False)
            for name, rows in kind.data.test.items()
        }
        self._test_scores: _ScoresByStep | None = None

    def run(self, work: Path, clock: SaveClock | None = None) -> Tuned:
        """Train, restore the state with the best development score, and return its test predictions.

        States are saved in the folder `work`, and an interrupted training resumes from the newest one. A
        training whose loss or predictions are not finite stops without a result.
        """
        if self.schedule.test_curves:
            self._test_scores = _ScoresByStep(work / "test_scores.json")
        try:
            trained = train(
                self,
                self.schedule.fit_options,
                folder=None,
                work=work,
                early_stopping=self.schedule.early_stopping(len(self._train)),
                progress=lambda done, *_: self.progress(done),
                clock=clock,
            )
        except TrainingError as error:
            return Tuned(0.0, 0, (), {}, diverged=error.step)
        best = trained.result_step
        test_curve = (
            self._test_scores.at(step for step, _ in trained.scores) if self._test_scores else ()
        )
        return Tuned(
            dict(trained.scores)[best],
            best,
            _build_curve(trained),
            self._predict_tests(best),
            test_curve=test_curve,
        )

    def _predict_tests(self, step: int) -> dict[str, list[Any]]:
        """Return the predictions for each test set with the weights of a step."""
        rows_by_test = self.kind.data.test
        return {
            name: self.predict(rows, self._tests[name], step) for name, rows in rows_by_test.items()
        }

    # ── as a trainee ────────────────────────────────────────────────────────────────────────────

    @functools.cached_property
    def parameters(self) -> Mapping[str, Tensor]:
        return {name: p for name, p in self.modules.named_parameters() if p.requires_grad}

    def decays(self, parameter: Tensor) -> bool:
        return True

    @property
    def steps(self) -> int:
        return self.schedule.length.count_steps(len(self._train), self.schedule.batch_size)

    @property
    def tasks(self) -> Mapping[str, str]:
        entry = self.kind.data.entry
        return {entry.name: entry.head}

    def batch(self, step: int) -> PlannedBatch:
        plan, count = self.schedule, len(self._train)
        rows = batch_rows(count, plan.batch_size, step, plan.seed)
        epoch = step // math.ceil(count / plan.batch_size)
        part = PlannedPart(self.kind.data.entry.name, rows, in_batch=False)
        return PlannedBatch(step, epoch, stage=0, parts=(part,))

    def backward(self, batch: PlannedBatch) -> PassResult:
        self.modules.train()
        torch.manual_seed(stable_seed(self.schedule.seed, "step", batch.step))
        inputs = [self._train[row] for row in batch.parts[0].rows]
        logits, mask = self._compute_logits(inputs)
        loss = self.kind.loss(logits, inputs, mask)
        loss.backward()  # type: ignore[no-untyped-call]
        tokens = sum(len(text.ids) for item in inputs for text in item.texts)
        return PassResult(loss.detach(), tokens, mask.numel(), kept=mask.numel())

    def score(self, step: int) -> float:
        data = self.kind.data
        metric, classes = data.entry.scored_by, data.classes
        if self._test_scores is not None:
            scores = {
                name: score(metric, classes, data.test[name], predicted)
                for name, predicted in self._predict_tests(step).items()
            }
            self._test_scores.add(step, scores)
        return score(metric, classes, data.dev, self.predict(data.dev, self._dev, step))

    def predict(self, rows: Sequence[TaskRow], inputs: Sequence[TaskInput], step: int) -> list[Any]:
        """Return a prediction for each row with the weights of a step; texts of similar length share a batch.

        Raises:
            TrainingError: for predictions that are not finite.
        """
        self.modules.eval()
        sizes = [max(len(text.ids) for text in item.texts) for item in inputs]
        order = sorted(range(len(inputs)), key=lambda row: -sizes[row])
        prediction: dict[int, Any] = {}
        size = self.schedule.batch_size
        for start in range(0, len(order), size):
            row_numbers = order[start : start + size]
            batch = [inputs[row] for row in row_numbers]
            with torch.inference_mode():
                logits, mask = self._compute_logits(batch)
                if not math.isfinite(float(logits.sum(dtype=torch.float64))):
                    raise TrainingError(f"predictions after step {step} are not finite", step)
                rows_of_batch = [rows[row] for row in row_numbers]
                predicted = self.kind.predictions(logits, batch, mask, rows_of_batch)
            prediction |= dict(zip(row_numbers, predicted, strict=True))
        return [prediction[row] for row in range(len(rows))]

    def _compute_logits(self, batch: Sequence[TaskInput]) -> tuple[Tensor, Tensor]:
        """Return (the head's logits, token mask) of all texts of a batch."""
        dtype = self.schedule.autocast
        with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
            states, mask = token_states(
                self.encoder, [text for item in batch for text in item.texts]
            )
            return self.head(states, mask), mask


class _ScoresByStep:
    """Scores by test set after steps, in a file, so that a training that resumes has those before it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self._scores: dict[int, dict[str, float]] = {int(step): one for step, one in stored.items()}

    def add(self, step: int, scores: Mapping[str, float]) -> None:
        """Store the scores of a step."""
        self._scores[step] = dict(scores)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._path, json.dumps(self._scores))

    def at(self, steps: Iterable[int]) -> list[tuple[int, Mapping[str, float]]]:
        """Return (step, scores) of each step."""
        return [(step, self._scores[step]) for step in steps]


def batch_rows(count: int, size: int, step: int, seed: int) -> NDArray[np.int64]:
    """Return the row numbers of a step's batch; each epoch has all rows in a new order."""
    epoch, number = divmod(step, math.ceil(count / size))
    order = _shuffle_rows(count, stable_seed(seed, "order", epoch))
    return order[number * size : (number + 1) * size]


@functools.lru_cache(maxsize=2)
def _shuffle_rows(count: int, seed: int) -> NDArray[np.int64]:
    return np.asarray(shuffled(count, seed), np.int64)


def _build_curve(trained: FitResult) -> list[tuple[int, float, float]]:
    """Return (step, mean loss since the last point, score) of each development score."""
    points, before = [], 0
    for step, dev in trained.scores:
        losses = [loss for _, loss in trained.step_losses[before:step]]
        points.append((step, sum(losses) / len(losses), dev))
        before = step
    return points


def _find_state_width(encoder: TokenEncoder) -> int:
    """Return the width of an encoder's hidden states."""
    with torch.inference_mode():
        states, _ = token_states(encoder, encoder.tokenise([""], prompt="", max_length=None))
    return int(states.shape[-1])
