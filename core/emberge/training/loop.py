"""The loop: passes, optimizer, states, and a model in the end."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emberge.contracts.backbone import Encoder
from emberge.seeds import stable_seed
from emberge.training.batches import Draw, draw_batch
from emberge.training.encode import EncodePlan, encode_and_backward
from emberge.training.identity import Engine, refuse_other
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
from emberge.training.record import Record
from emberge.training.saves import clear_torn, latest_state, publish, save_state
from emberge.training.table import ExampleTable

__all__ = ["Training"]

SECONDS_BETWEEN_SAVES = 30.0
# Saving by the clock may cost one part in this many of the time.
SAVING_SHARE = 20

Progress = Callable[..., None]


class Training:
    """One training: an encoder, its optimizer, and where it stands."""

    def __init__(
        self,
        plan: BatchPlan,
        encoder: Encoder,
        objective: Objective,
        tables: Mapping[str, ExampleTable],
        options: FitOptions,
        engine: Engine,
        work: Path,
    ) -> None:
        self.plan, self.encoder, self.objective, self.tables = plan, encoder, objective, tables
        self.options, self.engine, self.work = options, engine, work
        self.device = next(encoder.module.parameters()).device
        named = {f"model.{name}": p for name, p in encoder.module.named_parameters()}
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
            activation_budget(encoder.module, self.device),
            torch.bfloat16 if engine.precision == "bfloat16" else None,
            active,
        )
        self.draw = Draw(options.positives, options.hard_negatives, options.fill, plan.seed)
        self.seconds = 0.0

    def run(
        self,
        identity: Mapping[str, Any],
        progress: Progress,
        metric: Callable[..., None],
        folder: Path,
    ) -> FitResult:
        """Train to the end, from the newest state if there is one, and write the model."""
        steps = self.plan.steps
        every = self.options.logging_steps or Record.interval(steps)
        record = Record(steps, metric, every, str(self.work / "states"))
        first = self._resume(identity, record)
        started = saved = time.monotonic()
        before, cost = self.seconds, 0.0
        for step in range(first, steps):
            self.step(self.plan[step], record)
            progress(step + 1, steps, "steps", _note(record))
            now = time.monotonic()
            self.seconds = before + now - started
            if self._is_time(step + 1, now - saved, cost):
                record.settle()
                self._keep(step + 1)
                self._save(step + 1, identity, record)
                saved = time.monotonic()
                cost = saved - now
            elif step + 1 in self._kept_steps():
                record.settle()
                self._keep(step + 1)
        record.settle()
        self.encoder.module.eval()
        folder.mkdir(parents=True, exist_ok=True)
        self.encoder.save(folder)
        return FitResult(
            examples=record.examples,
            steps=steps,
            seconds=self.seconds,
            losses=record.final_losses(),
            curve=record.curve(),
            pool=self.plan.sizes,
            checkpoints=self._hand_over(folder),
        )

    def step(self, batch: PlannedBatch, record: Record) -> None:
        """One optimizer step."""
        options = self.options
        factor = learning_rate_factor(
            batch.step, self.plan.steps, options.warmup_ratio, options.schedule
        )
        for group in self.optimizer.param_groups:
            group["lr"] = options.learning_rate * factor
        drawn = draw_batch(batch, self.tables, self.draw, unique=not self.encode_plan.dropout)
        passed = encode_and_backward(
            self.encoder,
            drawn.texts,
            drawn.objective(self.objective, self.device),
            self.encode_plan,
            # The rank takes its place in this seed when there are several.
            seed=stable_seed(self.plan.seed, "dropout", batch.step, 0),
            layers=self.objective.layers([part.dataset for part in batch.parts]),
        )
        limit = options.max_grad_norm if options.max_grad_norm is not None else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), limit)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        record.add(batch, passed, norm, options.learning_rate * factor)

    def _resume(self, identity: Mapping[str, Any], record: Record) -> int:
        states = self.work / "states"
        clear_torn(states)
        clear_torn(self.work / "checkpoints")
        state = latest_state(states)
        if state is None:
            return 0
        refuse_other(state, identity, states)
        with torch.no_grad():
            for name, parameter in self.encoder.module.named_parameters():
                if f"model.{name}" in state.tensors:
                    parameter.copy_(state.tensors[f"model.{name}"])
        self.objective.restore(state.tensors)
        restore_optimizer(self.optimizer, self.parameters, state.tensors)
        record.losses = list(state.facts["losses"])
        record.names = list(state.facts["names"])
        record.examples = state.facts["examples"]
        self.seconds = state.facts["seconds"]
        return state.step

    def _save(self, step: int, identity: Mapping[str, Any], record: Record) -> None:
        tensors: dict[str, Tensor] = dict(self.parameters)
        tensors |= optimizer_state(self.optimizer, self.parameters)
        facts = {
            "identity": identity,
            "losses": record.losses,
            "names": record.names,
            "examples": record.examples,
            "seconds": self.seconds,
        }
        save_state(self.work / "states", step, tensors, facts)

    def _is_time(self, step: int, since: float, cost: float) -> bool:
        if step == self.plan.steps:
            return False  # the model itself comes next
        if self.options.save_steps is not None:
            return step % self.options.save_steps == 0
        return since >= max(SECONDS_BETWEEN_SAVES, SAVING_SHARE * cost)

    def _kept_steps(self) -> frozenset[int]:
        if not self.options.keep_last:
            return frozenset()
        every = self.options.save_steps
        if every is None:
            return frozenset(self.plan.starts[1:])
        return frozenset(range(every, self.plan.steps + 1, every))

    def _keep(self, step: int) -> None:
        """Write the model of this step beside the states, if it is one to keep; drop older ones."""
        if step not in self._kept_steps():
            return
        folder = self.work / "checkpoints"
        publish(folder / f"step-{step}", self.encoder.save)
        for old in _by_step(folder)[: -self.options.keep_last]:
            shutil.rmtree(old)

    def _hand_over(self, folder: Path) -> tuple[Path, ...]:
        """Put the kept models into the result; the originals stay until the step is done."""
        kept = _by_step(self.work / "checkpoints") if self.options.keep_last else []
        for path in kept:
            shutil.copytree(path, folder / "checkpoints" / path.name, copy_function=_link)
        return tuple(Path("checkpoints") / path.name for path in kept)


def _note(record: Record) -> str:
    return "" if record.last is None else f"loss {record.last:.4g}"


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


def _by_step(folder: Path) -> list[Path]:
    found = folder.glob("step-*") if folder.is_dir() else ()
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
