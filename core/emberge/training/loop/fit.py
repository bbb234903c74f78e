"""Entry points of the training loop: `fit` for an encoder with losses, `train` for other trainees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from emberge.contracts import Machine
from emberge.training.fit_options import EarlyStopping, FitJob, FitOptions, FitResult
from emberge.training.loop.checkpoints import SaveClock
from emberge.training.loop.session_opening import open_session
from emberge.training.loop.trainer import Trainer
from emberge.training.trainee import Trainee


def fit(
    job: FitJob,
    *,
    folder: Path | None,
    work: Path,
    store: Path | None,
    machine: Machine,
    progress: Callable[..., None],
    metric: Callable[..., None],
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
        CheckpointError: if the checkpoint cannot be loaded.
        DataError: if the losses or the sampler cannot use the data.
        EmbergeError: if `work` has a state of another training, or a loss is not finite.
        RanksError: if the ranks do not find each other or do not agree, or if one has ended.
    """
    with open_session(
        job, work=work, store=store, machine=machine, progress=progress, warn=warn
    ) as session:
        progress(0, 0, "", "the first step is measured")
        log = metric if session.ranks.is_first else _log_nothing
        if job.options.token_budget is None:
            log("token_budget", float(session.encode_plan.token_budget), 0)
        result = train(
            session,
            job.options,
            folder=folder,
            work=work,
            early_stopping=job.early_stopping,
            progress=progress,
            metric=log,
            warn=session.warn,
            clock=session.clock,
        )
    pool = {
        info.name: len(session.data_rows(info.name, rows))
        for info, rows in session.plan.pool.items()
    }
    return replace(result, pool=pool)


def train(
    trainee: Trainee,
    options: FitOptions,
    *,
    folder: Path | None,
    work: Path,
    early_stopping: EarlyStopping | None = None,
    progress: Callable[..., None],
    metric: Callable[..., None] | None = None,
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
