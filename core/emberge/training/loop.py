"""The loop: passes, optimizer, states, and a model in the end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emberge.contracts.backbone import Encoder
from emberge.durable import sync_files
from emberge.seeds import stable_seed
from emberge.training.batches import Draw, draw_batch
from emberge.training.encode import EncodePlan, Passed, encode_and_backward
from emberge.training.identity import Engine, refuse_other
from emberge.training.kept import KeptModels
from emberge.training.memory import activation_budget
from emberge.training.objective import Objective
from emberge.training.optimizer import (
    adamw,
    learning_rate_factor,
    optimizer_state,
    restore_optimizer,
)
from emberge.training.options import FitOptions, FitResult
from emberge.training.plan import BatchPlan, PlannedBatch
from emberge.training.ranks import ALONE, Ranks
from emberge.training.record import Record
from emberge.training.saves import State, clear_torn, latest_state, save_state
from emberge.training.shards import clip_gradients, is_split, put, sum_gradients, whole, whole_model
from emberge.training.table import ExampleTable
from emberge.training.watch import Course, Watch

__all__ = ["Training"]

SECONDS_BETWEEN_SAVES = 30.0
# Saving by the clock may cost one part in this many of the time.
SAVING_SHARE = 20

Progress = Callable[..., None]


class Training:
    """One training: an encoder, its optimizer, and where it stands.

    With several ranks each has one, in step with the others; the first writes for all of them.
    """

    def __init__(
        self,
        plan: BatchPlan,
        encoder: Encoder,
        objective: Objective,
        tables: Mapping[str, ExampleTable],
        options: FitOptions,
        engine: Engine,
        work: Path,
        ranks: Ranks = ALONE,
        watch: Watch | None = None,
    ) -> None:
        self.plan, self.encoder, self.objective, self.tables = plan, encoder, objective, tables
        self.options, self.work, self.ranks = options, work, ranks
        self.device = next(encoder.module.parameters()).device
        named = {f"model.{name}": p for name, p in encoder.module.named_parameters()}
        self.split = any(is_split(p) for p in named.values())
        self.parameters: dict[str, Any] = {
            **{name: p for name, p in named.items() if p.requires_grad},
            **objective.parameters,
        }
        self.optimizer = adamw(self.parameters, options)
        active = options.dropout and _has_dropout(encoder.module)
        encoder.module.train(options.dropout)
        self.encode_plan = EncodePlan(
            engine.token_budget,
            options.kept_tokens,
            activation_budget(encoder.module, self.device, ranks.beside),
            torch.bfloat16 if engine.precision == "bfloat16" else None,
            active,
            ranks,
            self.split,
        )
        self.draw = Draw(options.positives, options.hard_negatives, options.fill, plan.seed)
        self.kept = KeptModels.of(plan, options, work / "checkpoints")
        self.course = Course(watch, plan.steps, work / "scored")
        self.seconds = self.cpu_seconds = 0.0

    def run(
        self,
        identity: Mapping[str, Any],
        progress: Progress,
        metric: Callable[..., None],
        folder: Path | None,
    ) -> FitResult:
        """Train to the end, from the newest state if there is one; write the model if it has a place."""
        steps = self.plan.steps
        every = self.options.logging_steps or Record.interval(steps)
        tasks = {info.name: info.task for info in self.plan.pool}
        record = Record(steps, metric, every, tasks, str(self.work / "states"), self.ranks)
        first = self._resume(identity, record)
        started = saved = time.monotonic()
        before, cost = self.seconds, 0.0
        worked = time.process_time() - self.cpu_seconds
        for step in range(first, steps):
            if self.course.stopped:
                break
            self.step(self.plan[step], record, check=step == first)
            progress(step + 1, steps, "steps", record.note)
            now = time.monotonic()
            scored = self._score(step + 1, record, progress, metric)
            self.seconds = before + time.monotonic() - started
            self.cpu_seconds = time.process_time() - worked
            if scored or self._is_time(step + 1, now - saved, cost):
                now = time.monotonic()
                record.settle()
                self._keep(step + 1)
                self._save(step + 1, identity, record)
                saved = time.monotonic()
                cost = saved - now
            elif step + 1 in self.kept.steps:
                record.settle()
                self._keep(step + 1)
        record.finish()
        return self._result(record, self._finish(folder))

    def _result(self, record: Record, checkpoints: tuple[Path, ...]) -> FitResult:
        steps, best = len(record.losses), self.course.best
        return FitResult(
            examples=record.examples,
            steps=steps,
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            losses=record.final_losses(),
            curve=record.curve(),
            pool=self.plan.sizes,
            checkpoints=checkpoints,
            scores=tuple(self.course.scores),
            result_step=best[0] if best is not None and self.course.leads else steps,
            step_losses=tuple(zip(record.names, record.losses, strict=True)),
        )

    def _score(
        self, step: int, record: Record, progress: Progress, metric: Callable[..., None]
    ) -> bool:
        """Score the model of this step if it is time to; only the first rank does, and tells the others."""
        if not self.course.is_due(step):
            return False
        record.settle()
        began = time.monotonic()
        progress(step, self.plan.steps, "steps", "scoring")
        with whole_model(self.encoder.module):
            self.ranks.first_does(lambda: self.course.write(step, self.encoder.save))
        self.course.scores = self.ranks.first_does(lambda: self.course.take(step))
        metric("score", self.course.scores[-1][1], step)
        record.leave_out(time.monotonic() - began)
        return True

    def step(self, batch: PlannedBatch, record: Record, *, check: bool = False) -> None:
        """One optimizer step; with `check` the ranks make sure that they agree before it is taken."""
        options, ranks = self.options, self.ranks
        first, end = self.plan.segment(batch.step) if options.restart else (0, self.plan.steps)
        factor = learning_rate_factor(
            batch.step - first, end - first, options.warmup_ratio, options.schedule
        )
        for group in self.optimizer.param_groups:
            group["lr"] = options.learning_rate * factor
        passed = self._passed(batch)
        sum_gradients(self.parameters, ranks, self.split)
        if check:
            self._hold_ranks_equal()
        limit = options.max_grad_norm if options.max_grad_norm is not None else float("inf")
        norm = clip_gradients(list(self.parameters.values()), limit)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        record.add(batch, passed, norm, options.learning_rate * factor)

    def _passed(self, batch: PlannedBatch) -> Passed:
        """Both passes over this rank's share of a batch; the loss is the whole batch's."""
        drawn = draw_batch(
            batch,
            self.tables,
            self.draw,
            unique=not self.encode_plan.dropout,
            ranks=self.ranks,
        )
        passed = encode_and_backward(
            self.encoder,
            drawn.texts,
            drawn.objective(self.objective, self.device),
            self.encode_plan,
            seed=stable_seed(self.plan.seed, "dropout", batch.step, self.ranks.rank),
            layers=self.objective.layers([part.dataset for part in batch.parts]),
        )
        return dataclasses.replace(passed, loss=self.ranks.total(passed.loss))

    def _hold_ranks_equal(self) -> None:
        plain = {name: p for name, p in self.parameters.items() if not is_split(p)}
        self.ranks.hold_equal(plain, "the values")
        grads = {name: p.grad for name, p in plain.items() if p.grad is not None}
        self.ranks.hold_equal(grads, "the gradients")

    def _resume(self, identity: Mapping[str, Any], record: Record) -> int:
        states = self.work / "states"

        def read() -> State | None:
            clear_torn(states)
            self.kept.clear_torn()
            state = latest_state(states)
            if state is not None:
                refuse_other(state, identity, states)
            return state

        state = self._spread(read)
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
        self.course.restore(state.facts.get("scores", ()))
        self.seconds = state.facts["seconds"]
        self.cpu_seconds = state.facts.get("cpu_seconds", 0.0)
        return state.step

    def _spread(self, read: Callable[[], State | None]) -> State | None:
        """What the first rank reads, for all of them."""
        held: list[State] = []

        def known() -> tuple[int, Mapping[str, Any]] | None:
            state = read()
            if state is None:
                return None
            held.append(state)
            return state.step, state.facts

        found = self.ranks.first_does(known)
        if found is None:
            return None
        return State(found[0], self.ranks.spread(held[0].tensors if held else None), found[1])

    def _save(self, step: int, identity: Mapping[str, Any], record: Record) -> None:
        tensors: dict[str, Tensor] = dict(self.parameters)
        tensors |= optimizer_state(self.optimizer, self.parameters)
        if self.split:
            tensors = {name: whole(tensor) for name, tensor in tensors.items()}
        facts = {
            "identity": identity,
            "losses": record.losses,
            "names": record.names,
            "examples": record.examples,
            "scores": self.course.scores,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }

        def save() -> None:
            # A training that goes on from the state does not log again what was logged before it.
            sync_files(self.work)
            save_state(self.work / "states", step, tensors, facts)
            self.course.saved()

        self.ranks.first_does(save)

    def _is_time(self, step: int, since: float, cost: float) -> bool:
        if step == self.plan.steps:
            return False  # the model itself comes next
        if self.options.save_steps is not None:
            return step % self.options.save_steps == 0
        due = since >= max(SECONDS_BETWEEN_SAVES, SAVING_SHARE * cost)
        return self.ranks.any_of([due and self.ranks.first])[0]

    def _keep(self, step: int) -> None:
        """Write the model of this step beside the states, if it is one to keep; drop older ones."""
        if step in self.kept.steps:
            with whole_model(self.encoder.module):
                self.ranks.first_does(lambda: self.kept.keep(step, self.encoder.save))

    def _finish(self, folder: Path | None) -> tuple[Path, ...]:
        """Write the model, the last or the best one, and hand over those that were kept."""
        if folder is None:
            self.ranks.any_of([False])  # see below
            return ()
        self.encoder.module.eval()

        def write() -> tuple[Path, ...]:
            folder.mkdir(parents=True, exist_ok=True)
            if self.course.leads:
                self.course.hand_over(folder)
            else:
                self.encoder.save(folder)
            return self.kept.hand_over(folder)

        with whole_model(self.encoder.module):
            kept = self.ranks.first_does(write)
        self.ranks.any_of([False])  # the first, who holds what all hear, leaves when all have heard
        return kept


def _has_dropout(module: torch.nn.Module) -> bool:
    """Whether anything random happens in the module's forward pass while training."""
    if any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in module.modules()):
        return True
    configs = (getattr(m, "config", None) for m in module.modules())
    values = (vars(c) for c in configs if c is not None and not isinstance(c, dict))
    return any(
        isinstance(value, float) and value > 0
        for found in values
        for name, value in found.items()
        if "drop" in name
    )
