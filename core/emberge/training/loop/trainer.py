"""Training loop: `fit` for an encoder with losses, `train` for other trainees, and the steps of both."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emberge.contracts import Machine
from emberge.errors import CheckpointError, TrainingError
from emberge.files import clear_torn, sync_tree
from emberge.interpreter import DelayedInterrupt
from emberge.model_folder import Checkpoint
from emberge.ranks import clip_gradients, gather_on_cpu, place_like, sum_gradients
from emberge.training.batch_plan import PlannedBatch
from emberge.training.fit_options import EarlyStopping, FitJob, FitOptions, FitResult, Progress
from emberge.training.loop.checkpoints import (
    KeptCheckpoints,
    SaveClock,
    TrainingState,
    refuse_other_training,
)
from emberge.training.loop.early_stopping import ScoreHistory
from emberge.training.loop.metrics import LOGGED_POINTS, LogMetric, MetricLog, ModelMetrics
from emberge.training.loop.optimizer import (
    build_adamw,
    compute_learning_rate_factor,
    read_optimizer_state,
    restore_optimizer,
)
from emberge.training.loop.session_opening import open_session
from emberge.training.trainee import Trainee
from emberge.wording import count_noun

# Prefix, in a state, of the names of the best parameters so far.
BEST_PREFIX = "best."
_STOPPING = "stopping after this step, and saving its state; a second signal stops at once\n"


class Trainer:
    """Training of a trainee, such as a `Session`: optimizer, metrics, states and results.

    With several ranks, each rank has a trainer, and all run the same steps; the first rank writes for all.
    """

    def __init__(
        self,
        trainee: Trainee,
        options: FitOptions,
        *,
        work: Path,
        early_stopping: EarlyStopping | None = None,
        progress: Progress,
        warn: Callable[[str], None],
        clock: SaveClock,
    ) -> None:
        self.trainee, self.options, self.work = trainee, options, work
        self.ranks, self.parameters = trainee.ranks, trainee.parameters
        self.progress, self.warn, self.clock = progress, warn, clock
        self.splits_weights = trainee.splits_weights
        self.optimizer = build_adamw(
            self.parameters, options, trainee.decays, fused=trainee.fixes_threads
        )
        steps_to_keep = frozenset(trainee.list_steps_to_keep(options))
        self.kept_checkpoints = KeptCheckpoints(
            work / "checkpoints", steps_to_keep, options.keep_last
        )
        self.history = ScoreHistory(early_stopping, trainee.steps)
        self.seconds = self.cpu_seconds = 0.0

    def run(self, metric: LogMetric, folder: Path | None) -> FitResult:
        """Train to the end, from the newest state if one exists, and write the model into `folder`."""
        trainee, steps, clock = self.trainee, self.trainee.steps, self.clock
        log, identity = self._open_log(metric), trainee.describe_identity()
        first = self._resume_from_state(identity, log)
        started, before = time.monotonic(), self.seconds
        cpu_seconds_before = time.process_time() - self.cpu_seconds
        clock.start()
        with DelayedInterrupt(_STOPPING if self.ranks.is_first else "") as interrupt:
            for step in range(first, steps):
                if self.history.stopped:
                    break
                self.step(trainee.plan_batch(step), log)
                self.progress(step + 1, steps, "steps", log.note)
                if self.history.is_due(step + 1):
                    self._score(step + 1, log, metric)
                self.seconds = before + time.monotonic() - started
                self.cpu_seconds = time.process_time() - cpu_seconds_before
                self._save_if_due(step + 1, identity, log, interrupt)
        log.finish()
        self.cpu_seconds = self._sum_cpu_seconds()
        return self._build_result(log, self._write_model(folder))

    def _open_log(self, metric: LogMetric) -> MetricLog:
        steps = self.trainee.steps
        return MetricLog(
            steps,
            metric,
            self.options.logging_steps or max(1, steps // LOGGED_POINTS),
            self.trainee.tasks,
            str(self.work / "states"),
            self.ranks,
            ModelMetrics(self.warn),
        )

    def _build_result(self, log: MetricLog, checkpoints: tuple[Path, ...]) -> FitResult:
        steps, best = len(log.losses), self.history.best
        return FitResult(
            examples=log.examples,
            steps=steps,
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            checkpoints=checkpoints,
            scores=tuple(self.history.scores),
            result_step=best[0] if best is not None else steps,
            step_losses=tuple(zip(log.names, log.losses, strict=True)),
            figures=log.model.figures(),
        )

    def _score(self, step: int, log: MetricLog, metric: LogMetric) -> None:
        """Score the parameters after this step."""
        log.flush_losses()
        began = time.monotonic()
        self.progress(step, self.trainee.steps, "steps", "scoring")
        self.history.add_score(step, self.trainee.score(step), self.parameters)
        metric("score", self.history.scores[-1][1], step)
        log.leave_out(time.monotonic() - began)

    def step(self, batch: PlannedBatch, log: MetricLog) -> None:
        """Run one optimizer step."""
        learning_rate = self._set_learning_rate(batch.step)
        pass_result = self.trainee.backward(batch)
        parameters = list(self.parameters.values())
        sum_gradients(parameters, self.ranks, self.splits_weights)
        limit = self.options.max_grad_norm
        norm = clip_gradients(parameters, math.inf if limit is None else limit)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        log.add(batch, pass_result, norm, learning_rate)

    def _set_learning_rate(self, step: int) -> float:
        """Set and return the learning rate of a step, from 0."""
        options, steps = self.options, self.trainee.steps
        learning_rate = options.learning_rate * compute_learning_rate_factor(
            step,
            steps,
            options.count_warmup_steps(steps),
            options.schedule,
            from_zero=self.trainee.warms_up_from_zero,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        return learning_rate

    def _resume_from_state(self, identity: Mapping[str, Any], log: MetricLog) -> int:
        states = self.work / "states"

        def read() -> TrainingState | None:
            clear_torn(states)
            self.kept_checkpoints.clear_torn()
            state = TrainingState.read_newest(states)
            if state is not None:
                refuse_other_training(state, identity, states)
            return state

        state = self._share_state(read)
        if state is None:
            return 0
        self._set_parameters(state.tensors)
        self.history.best_weights = {
            name.removeprefix(BEST_PREFIX): value
            for name, value in state.tensors.items()
            if name.startswith(BEST_PREFIX)
        }
        restore_optimizer(self.optimizer, self.parameters, state.tensors)
        log.restore(state.facts)
        self.history.restore(state.facts.get("scores", ()))
        self.seconds = state.facts["seconds"]
        self.cpu_seconds = state.facts["cpu_seconds"] if self.ranks.is_first else 0.0
        if (saved_by := state.facts["ranks"]) != self.ranks.size:
            self.warn(
                f"the first {count_noun(state.step, 'step')} ran on {count_noun(saved_by, 'rank')} and the "
                f"rest on {self.ranks.size}: the model differs from that of either number by rounding, and "
                "by more with dropout or a loss without cross_rank"
            )
        return state.step

    def _sum_cpu_seconds(self) -> float:
        """Return the CPU seconds of all ranks."""
        seconds = torch.tensor(self.cpu_seconds, dtype=torch.float64)
        return float(self.ranks.sum_over_ranks(seconds))

    def _set_parameters(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(place_like(parameter, values[name]))

    def _share_state(self, read: Callable[[], TrainingState | None]) -> TrainingState | None:
        """Return, on every rank, the saved state that the first rank reads."""
        read_here: list[TrainingState] = []

        def read_on_first_rank() -> tuple[int, Mapping[str, Any]] | None:
            state = read()
            if state is None:
                return None
            read_here.append(state)
            return state.step, state.facts

        step_and_facts = self.ranks.run_on_first_rank(read_on_first_rank)
        if step_and_facts is None:
            return None
        step, facts = step_and_facts
        tensors = self.ranks.broadcast(read_here[0].tensors if read_here else None)
        return TrainingState(step, tensors, facts)

    def _save_state(self, step: int, identity: Mapping[str, Any], log: MetricLog) -> None:
        tensors = dict(self.parameters) | read_optimizer_state(self.optimizer, self.parameters)
        if self.splits_weights:
            tensors = {name: gather_on_cpu(tensor) for name, tensor in tensors.items()}
        tensors |= {
            f"{BEST_PREFIX}{name}": value for name, value in self.history.best_weights.items()
        }
        facts = {
            "identity": identity,
            **log.to_facts(),
            "scores": self.history.scores,
            "seconds": self.seconds,
            "cpu_seconds": self._sum_cpu_seconds(),
            "ranks": self.ranks.size,
        }

        def save() -> None:
            # Metrics are on disk before the state, as a resumed training does not log them again.
            sync_tree(self.work, deep=False)
            TrainingState(step, tensors, facts).write(self.work / "states")

        self.ranks.run_on_first_rank(save)

    def _save_if_due(
        self, step: int, identity: Mapping[str, Any], log: MetricLog, interrupt: DelayedInterrupt
    ) -> None:
        """Keep the model of this step and save a state if due; all ranks stop if one was asked to."""
        is_due, is_stopping = self.ranks.join_flags([self._is_due(step), interrupt.is_pending])
        if is_due or is_stopping:
            with self.clock.saving():
                log.flush_losses()
                self._keep_model(step)
                self._save_state(step, identity, log)
        elif step in self.kept_checkpoints.steps:
            log.flush_losses()
            self._keep_model(step)
        if is_stopping:
            interrupt.raise_signal()

    def _is_due(self, step: int) -> bool:
        """Return whether a state is due after this step; by the clock of the first rank, if by a clock."""
        if step == self.trainee.steps:
            return False  # the model itself is written next
        if self.options.save_steps is not None:
            return step % self.options.save_steps == 0
        return self.ranks.is_first and self.clock.is_due()

    def _keep_model(self, step: int) -> None:
        """Write the model of this step next to the states if it is to be kept; remove older models."""
        if step in self.kept_checkpoints.steps:
            with self.trainee.gather_weights():
                self.ranks.run_on_first_rank(
                    lambda: self.kept_checkpoints.keep(step, self.trainee.save)
                )

    def _write_model(self, folder: Path | None) -> tuple[Path, ...]:
        """Write the last or best model, and return the paths of the kept models in the result."""
        if self.history.best_weights:
            self._set_parameters(self.history.best_weights)
        if folder is None:
            self.ranks.wait_for_all()
            return ()

        def write() -> list[str]:
            folder.mkdir(parents=True, exist_ok=True)
            self.trainee.save(folder)
            return [path.as_posix() for path in self.kept_checkpoints.copy_into(folder)]

        with self.trainee.gather_weights():
            kept_paths = self.ranks.run_on_first_rank(write)
        # The first rank serves the store, so it ends after all others have read it.
        self.ranks.wait_for_all()
        return tuple(map(Path, kept_paths))


def fit(
    job: FitJob,
    *,
    folder: Path | None,
    work: Path,
    store: Path | None,
    machine: Machine,
    progress: Progress,
    metric: LogMetric,
    warn: Callable[[str], None] | None = None,
) -> FitResult:
    """Train a checkpoint, write the model into `folder`, and return the losses, scores and rows used.

    If `folder` is None, no model is written. `work` keeps states: if the training is killed at any moment and
    called again with the same job, it ends with the same bytes on the same kind of device. `store` keeps
    token ids for other trainings. Only the job decides the result; `progress(done, total, unit, note)`,
    `metric(name, value, step)` and `warn(text)` are called during the training.

    With several `machine.ranks`, the function is called in as many processes, started by `torchrun`,
    `accelerate launch` or `emberge run --ranks`, with the same arguments. Only the first rank writes files
    other than caches. Batches are the same for any number of ranks. With `machine.shard`, the ranks split
    weights and optimizer (FSDP2).

    Raises:
        CheckpointError: if the checkpoint cannot be loaded, or has NaN.
        DataError: if the losses or the sampler cannot use the data.
        EmbergeError: if `work` has a state of another training, or a loss is not finite.
        RanksError: if the ranks do not find each other or do not agree, or if one has ended.
    """
    with open_session(
        job, work=work, store=store, machine=machine, progress=progress, warn=warn
    ) as session:
        progress(0, 0, "", "measuring the first step")
        log_metric = metric if session.ranks.is_first else _log_nothing
        if job.options.token_budget is None:
            log_metric("token_budget", float(session.encode_plan.token_budget), 0)
        with _explain_first_step(job.checkpoint):
            result = train(
                session,
                job.options,
                folder=folder,
                work=work,
                progress=progress,
                metric=log_metric,
                warn=session.warn,
                clock=session.clock,
            )
    rows_by_dataset = {
        info.name: len(session.find_data_rows(info.name, rows))
        for info, rows in session.plan.pool.items()
    }
    return replace(result, rows_by_dataset=rows_by_dataset)


@contextmanager
def _explain_first_step(checkpoint: Path) -> Iterator[None]:
    """Turn the failure of a first step into an error about the checkpoint, if that has NaN."""
    try:
        yield
    except TrainingError as error:
        name = Checkpoint(checkpoint).find_bad_tensor() if error.step == 1 else None
        if name is None:
            raise
        raise CheckpointError(
            f"{checkpoint}: '{name}' has NaN or infinite values, so no step can be taken; "
            "make the model again"
        ) from error


def train(
    trainee: Trainee,
    options: FitOptions,
    *,
    folder: Path | None,
    work: Path,
    early_stopping: EarlyStopping | None = None,
    progress: Progress,
    metric: LogMetric | None = None,
    warn: Callable[[str], None] = lambda _: None,
    clock: SaveClock | None = None,
) -> FitResult:
    """Train a trainee of any kind, save it into `folder`, and return its losses and scores.

    Options of batches are ignored, as the trainee itself makes its batches. If `folder` is None, nothing is
    saved, and the trainee has the last or the best parameters in memory. `work` keeps states as in `fit`.
    torch's random state is restored at the end.

    Raises:
        EmbergeError: if `work` has a state of another training.
        TrainingError: if a loss or a gradient is not finite.
    """
    work.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(
        trainee,
        options,
        work=work,
        early_stopping=early_stopping,
        progress=progress,
        warn=warn,
        clock=clock or SaveClock(),
    )
    with torch.random.fork_rng():
        return trainer.run(metric or _log_nothing, folder)


def _log_nothing(*_: object) -> None:
    """Ignore a metric: the first rank logs for all ranks."""
