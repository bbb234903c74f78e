"""The loop: plan, tokens, passes, optimizer, states, and a model in the end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emberge.contracts.backbone import Backbone, Encoder
from emberge.contracts.dataset import Dataset, DatasetInfo
from emberge.contracts.loss import Loss
from emberge.contracts.option import PerDataset
from emberge.contracts.sampler import Pool, Sampler
from emberge.contracts.step import Rehearsal
from emberge.errors import DataError, EmbergeError
from emberge.seeds import stable_seed
from emberge.training.batches import Draw, draw_batch
from emberge.training.encode import EncodePlan, default_token_budget, encode_and_backward
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
from emberge.training.saves import State, clear_torn, latest_state, publish, save_state
from emberge.training.table import ExampleTable, build_table, sides

__all__ = ["FitOptions", "FitResult", "fit"]

SECONDS_BETWEEN_SAVES = 30.0
# Saving by the clock may cost one part in this many of the time.
SAVING_SHARE = 20
# Rows that a rehearsal pretends to have, so that its batches are as large as in earnest.
REHEARSED_ROWS = 65536

Progress = Callable[..., None]


def fit(
    *,
    backbone: Backbone,
    checkpoint: Path,
    datasets: Sequence[Dataset],
    sampler: Sequence[Sampler],
    losses: PerDataset[tuple[Loss, ...]],
    options: FitOptions,
    folder: Path,
    work: Path,
    seed: int,
    device: str,
    store: Path | None,
    progress: Progress,
    metric: Callable[..., None],
    rehearsal: Rehearsal | None = None,
) -> FitResult:
    """Train a checkpoint and write the model into `folder`.

    `work` keeps states to resume from: killed at any moment and called again with the same arguments, it ends
    with the same bytes on the same kind of device. `store` keeps token ids for other trainings. Everything that
    makes a result depends on the arguments alone; `progress(done, total, unit, note)` and
    `metric(name, value, step)` are told how it goes.

    Raises:
        CheckpointError: for a checkpoint that cannot be loaded.
        DataError: for data that the losses or the sampler cannot use.
        EmbergeError: for a state of another training in `work`, or a loss that is not finite.
    """
    plan = BatchPlan(
        _pool(datasets, rehearsal),
        sampler,
        seed=seed,
        epochs=options.epochs,
        max_steps=rehearsal.steps if rehearsal else options.max_steps,
        negatives=options.negatives,
    )
    used = [dataset for dataset in datasets if dataset.info.name in plan.sizes]
    engine = _engine(work, device, options)
    threads = torch.get_num_threads()
    torch.set_num_threads(engine.threads)
    try:
        with torch.random.fork_rng():
            encoder = backbone.load(checkpoint, device=device, dtype="float32")
            objective = Objective(losses, [d.info for d in used], device)
            tables = _tables(used, encoder, options, store or work, progress)
            _require(plan, tables, objective)
            training = _Training(plan, encoder, objective, tables, options, engine, work, device)
            identity = _identity(plan, used, options, checkpoint)
            return training.run(identity, progress, metric, folder)
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Engine:
    """What the machine decides once: chosen at the first start, kept for every later one."""

    threads: int
    token_budget: int
    precision: str


def _engine(work: Path, device: str, options: FitOptions) -> _Engine:
    path = work / "engine.json"
    if path.is_file():
        return _Engine(**json.loads(path.read_text()))
    precision = options.precision
    if precision == "auto":
        able = device.startswith("cuda") and torch.cuda.is_bf16_supported()
        precision = "bfloat16" if able else "float32"
    budget = options.token_budget or default_token_budget(device, training=True)
    engine = _Engine(torch.get_num_threads(), budget, precision)
    work.mkdir(parents=True, exist_ok=True)
    side = path.with_name(".engine.json.part")
    side.write_text(json.dumps(asdict(engine)))
    os.replace(side, path)
    return engine


def _pool(datasets: Sequence[Dataset], rehearsal: Rehearsal | None) -> Pool:
    names = [dataset.info.name for dataset in datasets]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two datasets are named '{twice[0]}'; give one another name")
    pool: dict[DatasetInfo, Sequence[int]] = {}
    for dataset in datasets:
        rows: Sequence[int] = range(len(dataset))
        if rehearsal and len(dataset):
            few = min(len(dataset), rehearsal.rows)
            rows = [i % few for i in range(REHEARSED_ROWS)]
        pool[dataset.info] = rows
    return pool


def _tables(
    datasets: Sequence[Dataset],
    encoder: Encoder,
    options: FitOptions,
    store: Path,
    progress: Progress,
) -> dict[str, ExampleTable]:
    found = {}
    for dataset in datasets:
        both = sides(
            dataset,
            encoder,
            options.query_length or options.max_length,
            options.document_length or options.max_length,
        )
        note = f"reading {dataset.info.name}"
        found[dataset.info.name] = build_table(
            dataset,
            encoder,
            both,
            store,
            lambda done, total, note=note: progress(done, total, "rows", note),  # type: ignore[misc]
        )
    return found


def _require(plan: BatchPlan, tables: Mapping[str, ExampleTable], objective: Objective) -> None:
    """Refuse rows that lack what their losses read, before training."""
    grouped: dict[tuple[str, bool], None] = {}
    for batch in plan:
        grouped |= dict.fromkeys((part.dataset, part.in_batch) for part in batch.parts)
    rows = {info.name: rows for info, rows in plan.pool.items()}
    for name, in_batch in grouped:
        for loss in objective.of(name):
            tables[name].require(loss.needs, rows[name], type(loss).__name__, in_batch)


def _identity(
    plan: BatchPlan, datasets: Sequence[Dataset], options: FitOptions, checkpoint: Path
) -> dict[str, Any]:
    """What must be the same for a saved state to be continued."""
    weights = hashlib.sha256()
    for path in sorted(checkpoint.rglob("*.safetensors")):
        with path.open("rb") as file:
            weights.update(hashlib.file_digest(file, "sha256").digest())
    # What changes speed or what is kept beside the model is no part of it.
    free = {"save_steps", "keep_last", "logging_steps", "token_budget", "kept_tokens"}
    asked = {k: v for k, v in asdict(options).items() if k not in free}
    return {
        "plan": plan.fingerprint,
        "data": {dataset.info.name: dataset.fingerprint for dataset in datasets},
        "checkpoint": weights.hexdigest(),
        "options": json.loads(json.dumps(asked, default=str)),
    }


class _Training:
    """One training: an encoder, its optimizer, and where it stands."""

    def __init__(
        self,
        plan: BatchPlan,
        encoder: Encoder,
        objective: Objective,
        tables: Mapping[str, ExampleTable],
        options: FitOptions,
        engine: _Engine,
        work: Path,
        device: str,
    ) -> None:
        self.plan, self.encoder, self.objective, self.tables = plan, encoder, objective, tables
        self.options, self.engine, self.work = options, engine, work
        self.device = torch.device(device)
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
        _refuse_other(state, identity, states)
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
        """Write the model of this step beside the states, if it is one to keep; drop those that are too old."""
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


def _refuse_other(state: State, identity: Mapping[str, Any], states: Path) -> None:
    """Refuse to continue what another training began, with the reason."""
    known = state.facts["identity"]
    for part in ("checkpoint", "data", "options", "plan"):
        if known[part] == identity[part]:
            continue
        what = {
            "checkpoint": "the weights it starts from",
            "data": "the data",
            "options": "the options",
            "plan": "the batches (sampler, seed or number of rows)",
        }[part]
        if part in ("data", "options"):
            old, new = known[part], identity[part]
            names = sorted(k for k in {*old, *new} if old.get(k) != new.get(k))
            what += f" ({', '.join(names)})"
        raise EmbergeError(
            f"{states}: a training was begun here and {what} have changed since; "
            "delete the folder to start over, or undo the change to continue"
        )


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
