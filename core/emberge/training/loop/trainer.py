"""Training loop: passes, optimizer, states, and the model at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emberge.files import clear_torn, sync_tree
from emberge.ranks import clip_gradients, gathered_weights, is_split, put, sum_gradients, whole
from emberge.training.fit_options import FitResult
from emberge.training.loop.checkpoints import (
    KeptCheckpoints,
    TrainingState,
    latest_state,
    save_state,
)
from emberge.training.loop.early_stopping import ScoreHistory
from emberge.training.loop.metrics import MetricLog
from emberge.training.loop.model_metrics import ModelMetrics
from emberge.training.loop.optimizer import (
    adamw,
    learning_rate_factor,
    optimizer_state,
    restore_optimizer,
)
from emberge.training.loop.resume_check import identity_of, refuse_other
from emberge.training.loop.session import Session
from emberge.training.plan.batch_plan import PlannedBatch

__all__ = ["Trainer"]


class Trainer:
    """Training of a session's encoder: optimizer, metrics, states and results.

    With several ranks each has one, in step with the others; the first writes for all of them.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.ranks, self.plan = session, session.ranks, session.plan
        self.encoder, self.objective = session.encoder, session.objective
        self.options, self.work = session.job.options, session.work
        self.split = session.encode_plan.sharded
        named = {f"model.{name}": p for name, p in self.encoder.module.named_parameters()}
        self.parameters: dict[str, Any] = {
            **{name: p for name, p in named.items() if p.requires_grad},
            **self.objective.parameters,
        }
        self.optimizer = adamw(self.parameters, self.options)
        self.kept = KeptCheckpoints.of(self.plan, self.options, self.work / "checkpoints")
        self.history = ScoreHistory(
            session.job.early_stopping, self.plan.steps, self.work / "scored"
        )
        self.seconds = self.cpu_seconds = 0.0

    def run(self, metric: Callable[..., None], folder: Path | None) -> FitResult:
        """Train to the end, from the newest state if there is one, and write the model into `folder`."""
        steps, progress, clock = self.plan.steps, self.session.progress, self.session.clock
        every = self.options.logging_steps or MetricLog.interval(steps)
        tasks = {info.name: info.task for info in self.plan.pool}
        own = ModelMetrics(self.session.warn)
        record = MetricLog(steps, metric, every, tasks, str(self.work / "states"), self.ranks, own)
        identity = identity_of(self.session)
        first = self._resume(identity, record)
        started, before = time.monotonic(), self.seconds
        worked = time.process_time() - self.cpu_seconds
        clock.start()
        for step in range(first, steps):
            if self.history.stopped:
                break
            self.step(self.plan[step], record, check=step == first)
            progress(step + 1, steps, "steps", record.note)
            scored = self._score(step + 1, record, metric)
            self.seconds = before + time.monotonic() - started
            self.cpu_seconds = time.process_time() - worked
            if scored or self._is_due(step + 1):
                with clock.saving():
                    record.flush_losses()
                    self._keep(step + 1)
                    self._save(step + 1, identity, record)
            elif step + 1 in self.kept.steps:
                record.flush_losses()
                self._keep(step + 1)
        record.finish()
        return self._result(record, self._finish(folder))

    def _result(self, record: MetricLog, checkpoints: tuple[Path, ...]) -> FitResult:
        steps, best = len(record.losses), self.history.best
        return FitResult(
            examples=record.examples,
            steps=steps,
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            losses=record.final_losses(),
            curve=record.curve(),
            pool={
                info.name: len(self.session.data_rows(info.name, rows))
                for info, rows in self.plan.pool.items()
            },
            checkpoints=checkpoints,
            scores=tuple(self.history.scores),
            result_step=best[0] if best is not None and self.history.leads else steps,
            step_losses=tuple(zip(record.names, record.losses, strict=True)),
            figures=record.model.figures(),
        )

    def _score(self, step: int, record: MetricLog, metric: Callable[..., None]) -> bool:
        """Return whether the model of this step was due and is scored now: by the first rank, for all."""
        if not self.history.is_due(step):
            return False
        record.flush_losses()
        began = time.monotonic()
        self.session.progress(step, self.plan.steps, "steps", "scoring")
        with gathered_weights(self.encoder.module):
            self.ranks.on_first_rank(lambda: self.history.write(step, self.encoder.save))
        self.history.restore(self.ranks.on_first_rank(lambda: self.history.take(step)))
        metric("score", self.history.scores[-1][1], step)
        record.leave_out(time.monotonic() - began)
        return True

    def step(self, batch: PlannedBatch, record: MetricLog, *, check: bool = False) -> None:
        """Take one optimizer step; with `check` the ranks first make sure that they agree."""
        options, step = self.options, batch.step
        first, end = self.plan.segment(step) if options.restart else (0, self.plan.steps)
        factor = learning_rate_factor(
            step - first,
            end - first,
            options.warmup_ratio,
            options.schedule,
            options.decay_share,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = options.learning_rate * factor
        passed = self.session.backward(batch)
        sum_gradients(self.parameters, self.ranks, self.split)
        if check:
            self._check_ranks_equal()
        limit = options.max_grad_norm if options.max_grad_norm is not None else float("inf")
        norm = clip_gradients(list(self.parameters.values()), limit)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        record.add(batch, passed, norm, options.learning_rate * factor)

    def _check_ranks_equal(self) -> None:
        plain = {name: p for name, p in self.parameters.items() if not is_split(p)}
        self.ranks.require_equal(plain, "the values")
        grads = {name: p.grad for name, p in plain.items() if p.grad is not None}
        self.ranks.require_equal(grads, "the gradients")

    def _resume(self, identity: Mapping[str, Any], record: MetricLog) -> int:
        states = self.work / "states"

        def read() -> TrainingState | None:
            clear_torn(states)
            self.kept.clear_torn()
            state = latest_state(states)
            if state is not None:
                refuse_other(state, identity, states)
            return state

        state = self._broadcast_state(read)
        if state is None:
            return 0
        with torch.no_grad():
            for name, parameter in self.encoder.module.named_parameters():
                if f"model.{name}" in state.tensors:
                    parameter.copy_(put(parameter, state.tensors[f"model.{name}"]))
        self.objective.restore(state.tensors)
        restore_optimizer(self.optimizer, self.parameters, state.tensors)
        record.losses = list(state.facts["losses"])
        record.names = list(state.facts["names"])
        record.examples = state.facts["examples"]
        record.model.restore(state.facts["model"])
        self.history.restore(state.facts.get("scores", ()))
        self.seconds = state.facts["seconds"]
        self.cpu_seconds = state.facts.get("cpu_seconds", 0.0)
        return state.step

    def _broadcast_state(self, read: Callable[[], TrainingState | None]) -> TrainingState | None:
        """Return the state that the first rank reads, on every rank."""
        read_here: list[TrainingState] = []

        def known() -> tuple[int, Mapping[str, Any]] | None:
            state = read()
            if state is None:
                return None
            read_here.append(state)
            return state.step, state.facts

        found = self.ranks.on_first_rank(known)
        if found is None:
            return None
        return TrainingState(
            found[0], self.ranks.broadcast(read_here[0].tensors if read_here else None), found[1]
        )

    def _save(self, step: int, identity: Mapping[str, Any], record: MetricLog) -> None:
        tensors: dict[str, Tensor] = dict(self.parameters)
        tensors |= optimizer_state(self.optimizer, self.parameters)
        if self.split:
            tensors = {name: whole(tensor) for name, tensor in tensors.items()}
        facts = {
            "identity": identity,
            "losses": record.losses,
            "names": record.names,
            "examples": record.examples,
            "model": record.model.facts(),
            "scores": self.history.scores,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }

        def save() -> None:
            # A training that goes on from the state does not log again what was logged before it.
            sync_tree(self.work, deep=False)
            save_state(self.work / "states", step, tensors, facts)
            self.history.drop_unneeded()

        self.ranks.on_first_rank(save)

    def _is_due(self, step: int) -> bool:
        """Return whether a state is due after this step, alike on every rank."""
        if step == self.plan.steps:
            return False  # the model itself comes next
        if self.options.save_steps is not None:
            return step % self.options.save_steps == 0
        due = self.ranks.first and self.session.clock.is_due()
        return self.ranks.any_of([due])[0]

    def _keep(self, step: int) -> None:
        """Write the model of this step beside the states, if it is one to keep; drop older ones."""
        if step in self.kept.steps:
            with gathered_weights(self.encoder.module):
                self.ranks.on_first_rank(lambda: self.kept.keep(step, self.encoder.save))

    def _finish(self, folder: Path | None) -> tuple[Path, ...]:
        """Write the model, the last or the best one, and return the paths of the kept ones in the result."""
        if folder is None:
            self.ranks.any_of([False])  # see below
            return ()
        self.encoder.module.eval()

        def write() -> list[str]:
            folder.mkdir(parents=True, exist_ok=True)
            if self.history.leads:
                self.history.copy_into(folder)
            else:
                self.encoder.save(folder)
            return [path.as_posix() for path in self.kept.copy_into(folder)]

        with gathered_weights(self.encoder.module):
            kept = self.ranks.on_first_rank(write)
        self.ranks.any_of(
            [False]
        )  # the first rank serves the store, so it leaves after all others have read it
        return tuple(map(Path, kept))
