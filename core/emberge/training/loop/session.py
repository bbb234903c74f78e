"""Session: model, batches and losses of a training or a measurement, prepared once."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from emberge.contracts.backbone import Encoder, TokenisedText
from emberge.contracts.dataset import Dataset, DatasetInfo
from emberge.contracts.loss import score_problems
from emberge.contracts.sampler import Pool
from emberge.contracts.step import Machine, Rehearsal
from emberge.devices import torch_threads
from emberge.encoding.activation_memory import activation_budget
from emberge.encoding.gradient_cache import (
    EncodePlan,
    PassResult,
    device_of,
    draws_random_numbers,
    encode_and_backward,
)
from emberge.errors import CheckpointError, DataError
from emberge.files.atomic import clear_torn
from emberge.ranks.fsdp import is_split, split_weights
from emberge.ranks.ranks import Ranks, RanksError, join_ranks
from emberge.seeds import stable_seed
from emberge.training.fit_job import FitJob
from emberge.training.loop.checkpoints import latest_state, save_state
from emberge.training.loop.token_budget import EngineSettings, budgeted, choose_engine
from emberge.training.objective import Objective
from emberge.training.plan.batch_plan import BatchPlan, PlannedBatch
from emberge.training.plan.plan_fingerprint import refuse_unknown_names
from emberge.training.tables.batch_texts import DrawnBatch, TextSampling, draw_batch
from emberge.training.tables.example_table import ExampleTable, build_tables
from emberge.training.tables.guides import with_guides

__all__ = ["SaveClock", "Session"]

SECONDS_BETWEEN_SAVES = 30.0
# Saving by the clock may cost one part in this many of the time.
SAVING_SHARE = 20
# Rows that a rehearsal pretends to have, so that its batches are as large as in earnest.
REHEARSED_ROWS = 65536

Progress = Callable[..., None]


class SaveClock:
    """Clock that decides when a state is due: every `seconds`, or later where saving takes long.

    Saving costs at most one part in `share` of the time.
    """

    def __init__(self, seconds: float = SECONDS_BETWEEN_SAVES, share: float = SAVING_SHARE) -> None:
        self._seconds, self._share = seconds, share
        self.start()

    def start(self) -> None:
        """Begin to count anew, as if a state had been saved at no cost."""
        self._saved, self._cost = time.monotonic(), 0.0

    def is_due(self) -> bool:
        """Return whether it is time for the next state."""
        since = time.monotonic() - self._saved
        return since >= max(self._seconds, self._share * self._cost)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Time the block, which saves a state, and count from its end."""
        began = time.monotonic()
        yield
        self._saved = time.monotonic()
        self._cost = self._saved - began


@dataclass(eq=False)
class Session:
    """Model, batches and losses of a job, ready for passes over its batches.

    `plan` has the batches of the `pool`, `datasets` are those that it takes rows of, `tables` their rows as
    token ids. `encode_plan` is how a batch runs in chunks, `sampling` which texts of a row are drawn.
    """

    job: FitJob
    work: Path
    ranks: Ranks
    pool: Pool
    plan: BatchPlan
    datasets: Sequence[Dataset]
    objective: Objective
    encoder: Encoder
    tables: Mapping[str, ExampleTable]
    encode_plan: EncodePlan
    sampling: TextSampling
    progress: Progress
    clock: SaveClock
    warn: Callable[[str], None]

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        job: FitJob,
        *,
        work: Path,
        store: Path | None,
        machine: Machine,
        progress: Progress,
        warn: Callable[[str], None] | None = None,
        clock: SaveClock | None = None,
        takes_losses: bool = True,
    ) -> Iterator[Session]:
        """Prepare a session; torch's threads and random state are restored after it.

        `work` keeps what the machine chose at the first start, so that a later one computes alike; `store`
        keeps token ids for other sessions. Without `takes_losses` rows may lack what losses read, and no
        guide is loaded.

        Raises:
            CheckpointError: for a checkpoint that cannot be loaded.
            DataError: for data that the losses or the sampler cannot use.
            RanksError: for ranks that do not find each other.
        """
        if takes_losses and (harm := job.backbone.check_training(job.checkpoint)):
            raise CheckpointError("\n".join(harm))
        ranks = _join(machine)
        pool = _pool(job.datasets, job.rehearsal)
        refuse_unknown_names({"loss": job.losses, **vars(job.options)}, pool)
        plan = _plan(job, pool, warn)
        used = [dataset for dataset in job.datasets if dataset.info.name in plan.sizes]
        engine = ranks.on_first_rank(
            lambda: choose_engine(work, ranks.device, job.options, ranks.beside)
        )
        with torch_threads(engine.threads), torch.random.fork_rng():
            objective = Objective(job.losses, [d.info for d in used], ranks.device)
            encoder = job.backbone.load(job.checkpoint, device=ranks.device, dtype="float32")

            def read() -> dict[str, ExampleTable]:
                return build_tables(used, encoder, job.options, store or work, progress)

            # The others find what the first has written, or write it for another machine.
            ranks.on_first_rank(lambda: read() and None)
            tables = read()
            if takes_losses:
                _require_rows(plan, tables, objective)
            engine = budgeted(work, engine, encoder, tables.values(), ranks)
            if takes_losses:
                tables = with_guides(
                    tables,
                    used,
                    objective,
                    folder_of=job.guides,
                    backbone=job.backbone,
                    device=ranks.device,
                    store=store or work,
                )
            encoder.module.train(job.options.dropout)
            # Weights that are split would stay whole after a pass that has no backward pass.
            draws = draws_random_numbers(encoder)
            if machine.shard and ranks.size > 1:
                split_weights(encoder, ranks)
            yield cls(
                job=job,
                work=work,
                ranks=ranks,
                pool=pool,
                plan=plan,
                datasets=used,
                objective=objective,
                encoder=encoder,
                tables=tables,
                encode_plan=_encode_plan(job, engine, encoder, ranks, draws),
                sampling=_sampling(job),
                progress=progress,
                clock=clock or SaveClock(),
                warn=(warn if ranks.first else None) or _warn_nobody,
            )

    @property
    def device(self) -> torch.device:
        """Device that the encoder's weights are on."""
        return device_of(self.encoder)

    def texts(self, batch: PlannedBatch) -> tuple[TokenisedText, ...]:
        """Return the texts of one batch that this rank encodes."""
        return self._draw(batch).texts

    def backward(self, batch: PlannedBatch) -> PassResult:
        """Run both passes over one batch, and return the result with the whole batch's loss.

        Gradients are added to those of the model and of learned parameters; they are this rank's share.
        """
        drawn = self._draw(batch)
        passed = encode_and_backward(
            self.encoder,
            drawn.texts,
            drawn.objective(self.objective, self.device),
            self.encode_plan,
            seed=stable_seed(self.plan.seed, "dropout", batch.step, self.ranks.rank),
            layers=self.objective.layers([part.dataset for part in batch.parts]),
        )
        return replace(passed, loss=self.ranks.total(passed.loss))

    def _draw(self, batch: PlannedBatch) -> DrawnBatch:
        return draw_batch(
            batch,
            self.tables,
            self.sampling,
            unique=not self.encode_plan.dropout,
            ranks=self.ranks,
        )

    def batches(
        self,
        sums: Mapping[str, Tensor],
        states: Path,
        *,
        is_complete: Callable[[], bool] = lambda: True,
        note: str = "",
    ) -> Iterator[PlannedBatch]:
        """Yield the batches that are left of a measurement, and save its `sums` between them by the clock.

        The newest state in `states` is loaded into `sums` first. A state is saved only where
        `is_complete()`, that is where the sums have all batches until then.
        """
        clear_torn(states)
        state = latest_state(states)
        if state is not None:
            for name, total in sums.items():
                total.copy_(state.tensors[name])
        self.clock.start()
        for step in range(state.step if state is not None else 0, self.plan.steps):
            yield self.plan[step]
            self.progress(step + 1, self.plan.steps, "batches", note)
            if is_complete() and self.clock.is_due():
                with self.clock.saving():
                    save_state(states, step + 1, sums, {})


def _warn_nobody(_: str) -> None:
    """Ignore a warning: nothing was given to take it, or the first rank warns for all."""


def _join(machine: Machine) -> Ranks:
    if machine.ranks == 1:
        return Ranks(device=machine.devices[0])
    ranks = join_ranks(machine.devices[0])
    if ranks.size != machine.ranks:
        raise RanksError(f"{machine.ranks} ranks shall train, and {ranks.size} were started")
    return ranks


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


def _plan(job: FitJob, pool: Pool, warn: Callable[[str], None] | None) -> BatchPlan:
    """Return the job's batch plan; warnings of its samplers go to `warn`, if there is one."""
    options = job.options
    with warnings.catch_warnings(record=warn is not None) as caught:
        if warn is not None:
            warnings.simplefilter("always", UserWarning)
        plan = BatchPlan(
            pool,
            job.sampler,
            seed=job.seed,
            epochs=options.epochs or 1.0,
            max_steps=job.rehearsal.steps if job.rehearsal else options.max_steps,
            negatives=options.negatives,
        )
    for word in caught or ():
        assert warn is not None
        warn(str(word.message))
    return plan


def _require_rows(
    plan: BatchPlan, tables: Mapping[str, ExampleTable], objective: Objective
) -> None:
    """Refuse rows that lack what their losses read, and scores that these learn nothing from."""
    problems = [p for info in plan.pool for p in score_problems(objective.of(info.name), info)]
    if problems:
        raise DataError("\n".join(problems))
    rows = {info.name: rows for info, rows in plan.pool.items()}
    for name, in_batch in plan.groups():
        for loss in objective.of(name):
            tables[name].require(loss.needs, rows[name], type(loss).__name__, in_batch)


def _encode_plan(
    job: FitJob, engine: EngineSettings, encoder: Encoder, ranks: Ranks, draws: bool
) -> EncodePlan:
    module = encoder.module
    return EncodePlan(
        token_budget=engine.token_budget,
        kept_tokens=job.options.kept_tokens,
        kept_bytes=activation_budget(module, device_of(encoder), ranks.beside),
        autocast=torch.bfloat16 if engine.precision == "bfloat16" else None,
        dropout=draws,
        ranks=ranks,
        sharded=any(is_split(parameter) for parameter in module.parameters()),
    )


def _sampling(job: FitJob) -> TextSampling:
    options = job.options
    return TextSampling(options.positives, options.hard_negatives, options.fill, job.seed)
