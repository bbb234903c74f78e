"""Train a checkpoint on datasets: plan the batches, read the data once, run the loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from emberge.contracts.backbone import Backbone, Encoder
from emberge.contracts.dataset import Dataset, DatasetInfo, Rows
from emberge.contracts.loss import Loss
from emberge.contracts.option import PerDataset
from emberge.contracts.sampler import Pool, Sampler
from emberge.contracts.step import Rehearsal
from emberge.devices import torch_threads
from emberge.errors import DataError
from emberge.ranks.fsdp import split_weights
from emberge.ranks.joined import join_ranks
from emberge.ranks.ranks import Ranks, RanksError
from emberge.training.fit_options import FitOptions, FitResult
from emberge.training.loop.early_stopping import EarlyStopping
from emberge.training.loop.resume_check import choose_engine, identity_of
from emberge.training.loop.token_budget import budgeted
from emberge.training.loop.trainer import Training
from emberge.training.objective import Objective
from emberge.training.plan.batch_plan import BatchPlan
from emberge.training.plan.lazy_rows import same_rows
from emberge.training.plan.plan_fingerprint import refuse_unknown_names
from emberge.training.tables.example_table import ExampleTable, build_table, sides
from emberge.training.tables.guides import Whereabouts, with_guides

__all__ = ["FitOptions", "FitResult", "fit", "require_rows", "tables_of"]

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
    folder: Path | None,
    work: Path,
    seed: int,
    device: str,
    store: Path | None,
    progress: Progress,
    metric: Callable[..., None],
    rehearsal: Rehearsal | None = None,
    warn: Callable[[str], None] | None = None,
    ranks: int = 1,
    shard: bool = False,
    guides: Whereabouts | None = None,
    watch: EarlyStopping | None = None,
) -> FitResult:
    """Train a checkpoint and write the model into `folder`; None keeps no model, only what is said of it.

    `work` keeps states to resume from: killed at any moment and called again with the same arguments, it
    ends with the same bytes on the same kind of device. `store` keeps token ids for other trainings.
    Everything that makes a result depends on the arguments alone; `progress(done, total, unit, note)` and
    `metric(name, value, step)` are told how it goes. `guides` says where the models lie that losses name as
    their guides. `watch` scores the model on the way, ends the training early and chooses the result.

    With several `ranks` this is called in as many processes, set up by `torchrun`, `accelerate launch` or
    `emberge run --ranks`, with the same arguments; only the first writes anything but caches. Batches are
    the same for any number of them. With `shard` they split weights and optimizer among them (FSDP2).

    Raises:
        CheckpointError: for a checkpoint that cannot be loaded.
        DataError: for data that the losses or the sampler cannot use.
        EmbergeError: for a state of another training in `work`, or a loss that is not finite.
        RanksError: for ranks that do not find each other, do not agree, or of which one has ended.
    """
    among = _ranks(ranks, device)
    pool = _pool(datasets, rehearsal)
    refuse_unknown_names({"loss": losses, **vars(options)}, pool)
    with warnings.catch_warnings(record=warn is not None) as said:
        if warn is not None:
            warnings.simplefilter("always", UserWarning)
        plan = BatchPlan(
            pool,
            sampler,
            seed=seed,
            epochs=options.epochs or 1.0,
            max_steps=rehearsal.steps if rehearsal else options.max_steps,
            negatives=options.negatives,
        )
    for word in said or ():
        assert warn is not None
        warn(str(word.message))
    used = [dataset for dataset in datasets if dataset.info.name in plan.sizes]
    engine = among.first_does(lambda: choose_engine(work, among.device, options, among.beside))
    with torch_threads(engine.threads), torch.random.fork_rng():
        objective = Objective(losses, [d.info for d in used], among.device)
        encoder = backbone.load(checkpoint, device=among.device, dtype="float32")

        def tables() -> dict[str, ExampleTable]:
            return tables_of(used, encoder, options, store or work, progress)

        # The others find what the first has made, or make it for another machine.
        among.first_does(lambda: tables() and None)
        found = tables()
        require_rows(plan, found, objective)
        settled = budgeted(work, engine, encoder, found.values(), among)
        if among.first and options.token_budget is None:
            metric("token_budget", float(settled.token_budget), 0)
        found = with_guides(
            found, used, objective, whereabouts=guides, device=among.device, store=store or work
        )
        if shard and among.size > 1:
            split_weights(encoder, among)
        training = Training(plan, encoder, objective, found, options, settled, work, among, watch)
        code = {
            "backbone": backbone,
            **{f"loss of {d.info.name}": losses.of(d.info.name, d.info.task) for d in used},
            **({"evaluate": watch} if watch else {}),
        }
        identity = identity_of(plan, used, options, checkpoint, code)
        if not among.first:
            metric = _nobody_is_told
        result = training.run(identity, progress, metric, folder)
    return replace(result, bags=_bags(pool, plan))


def _nobody_is_told(*_: object) -> None:
    """The first rank logs for all of them."""


def _ranks(count: int, device: str) -> Ranks:
    if count == 1:
        return Ranks(device=device)
    ranks = join_ranks(device)
    if ranks.size != count:
        raise RanksError(f"{count} ranks shall train, and {ranks.size} were started")
    return ranks


def _bags(pool: Pool, plan: BatchPlan) -> dict[str, Rows]:
    return {
        info.name: rows
        for info, rows in plan.pool.items()
        if not same_rows(rows, pool.get(info, ()))
    }


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


def tables_of(
    datasets: Sequence[Dataset],
    encoder: Encoder,
    options: FitOptions,
    store: Path,
    progress: Progress,
) -> dict[str, ExampleTable]:
    """Each dataset's rows as token ids, read once and then found in `store`."""
    found = {}
    for dataset in datasets:
        both = sides(dataset, encoder, options)
        note = f"reading {dataset.info.name}"
        found[dataset.info.name] = build_table(
            dataset,
            encoder,
            both,
            store,
            lambda done, total, note=note: progress(done, total, "rows", note),  # type: ignore[misc]
        )
    return found


def require_rows(plan: BatchPlan, tables: Mapping[str, ExampleTable], objective: Objective) -> None:
    """Refuse rows that lack what their losses read, before training."""
    rows = {info.name: rows for info, rows in plan.pool.items()}
    for name, in_batch in plan.groups():
        for loss in objective.of(name):
            tables[name].require(loss.needs, rows[name], type(loss).__name__, in_batch)
