"""Train a checkpoint on datasets: the one way into a training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from emberge.contracts import Machine, Rows
from emberge.training.fit_job import FitJob
from emberge.training.fit_options import FitResult
from emberge.training.loop.session import Session
from emberge.training.loop.trainer import Trainer
from emberge.training.plan.lazy_rows import same_rows

__all__ = ["fit"]


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
    """Train a checkpoint, write the model into `folder`, and return what was trained on and learned.

    With `folder` None no model is written. `work` keeps states to resume from: killed at any moment and
    called again with the same job, it ends with the same bytes on the same kind of device. `store` keeps
    token ids for other trainings. The job alone decides the result; `progress(done, total, unit, note)`,
    `metric(name, value, step)` and `warn(text)` are called as it goes.

    With several `machine.ranks` this is called in as many processes, started by `torchrun`, `accelerate
    launch` or `emberge run --ranks`, with the same arguments; only the first writes anything but caches.
    Batches are the same for any number of them. With `machine.shard` they split weights and optimizer
    among them (FSDP2).

    Raises:
        CheckpointError: for a checkpoint that cannot be loaded.
        DataError: for data that the losses or the sampler cannot use.
        EmbergeError: for a state of another training in `work`, or a loss that is not finite.
        RanksError: for ranks that do not find each other, do not agree, or of which one has ended.
    """
    with Session.open(
        job, work=work, store=store, machine=machine, progress=progress, warn=warn
    ) as session:
        log = metric if session.ranks.first else _log_nothing
        if job.options.token_budget is None:
            log("token_budget", float(session.encode_plan.token_budget), 0)
        result = Trainer(session).run(log, folder)
    return replace(result, bags=_bags(session))


def _log_nothing(*_: object) -> None:
    """Ignore a metric: the first rank logs for all."""


def _bags(session: Session) -> dict[str, Rows]:
    """Return the row numbers of each dataset of which the samplers took only a part."""
    return {
        info.name: session.data_rows(info.name, rows)
        for info, rows in session.plan.pool.items()
        if not same_rows(rows, session.pool.get(info, ()))
    }
