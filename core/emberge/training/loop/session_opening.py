"""Opening of a session: the preparation of a training or a measurement before its first batch."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from emberge.contracts import (
    DatasetInfo,
    Encoder,
    Loss,
    Machine,
    Pool,
    TokenPredictor,
    cuts_windows,
)
from emberge.devices import limit_torch_threads
from emberge.encoding import (
    EncodePlan,
    draws_random_numbers,
    find_device,
    find_packing_problem,
    measure_activation_budget,
)
from emberge.errors import CheckpointError, DataError
from emberge.ranks import RankGroup, RanksError, is_split, join_ranks, split_weights
from emberge.training.batch_loss import Objective
from emberge.training.batch_plan import BatchPlan, refuse_unknown_names
from emberge.training.batch_texts import TextSampling
from emberge.training.example_table import ExampleTable, build_tables
from emberge.training.fit_options import (
    NO_OTHER_ROWS_MESSAGE,
    FitJob,
    GuideRequest,
    Progress,
    resolve_negatives,
)
from emberge.training.loop.checkpoints import SaveClock
from emberge.training.loop.machine_settings import (
    MachineSettings,
    choose_settings,
    fit_token_budget,
)
from emberge.training.loop.session import Session
from emberge.training.loss_problems import find_loss_problems, find_prediction_problems
from emberge.training.text_windows import WindowTable, build_windows
from emberge.wording import count_noun

Warn = Callable[[str], None]
T = TypeVar("T")


@contextlib.contextmanager
def open_session(
    job: FitJob,
    *,
    work: Path,
    store: Path | None,
    machine: Machine,
    progress: Progress,
    warn: Warn | None = None,
    clock: SaveClock | None = None,
    computes_losses: bool = True,
) -> Iterator[Session]:
    """Prepare a session; torch's threads and random state are restored after it.

    `work` keeps the settings chosen at the first start, so that later starts compute the same; `store` keeps
    token ids for other sessions. Without `computes_losses`, rows may lack columns that losses read, and no
    guide is loaded.

    Raises:
        CheckpointError: if the checkpoint cannot be loaded.
        DataError: if the losses or the sampler cannot use the data.
        RanksError: if the ranks do not find each other.
    """
    ranks = _join_started_ranks(machine)
    splits_weights = machine.shard and ranks.size > 1
    store, options = store or work, job.options
    _refuse_job(job, splits_weights, computes_losses)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        settings = choose_settings(work, options, ranks)
        stack.enter_context(limit_torch_threads(settings.threads))
        progress(0, 0, "", "loading the model")
        encoder = _load_encoder(job, ranks)
        progress(0, 0, "", "tokenising")
        # The rows of single texts are windows, so texts are cut before batches are planned.
        windows = _read_first_rank_first(
            ranks, lambda: _build_window_tables(job, encoder, store, progress)
        )
        infos = [
            windows[d.info.name].info if d.info.name in windows else d.info for d in job.datasets
        ]
        plan = _plan_batches(job, {info: range(info.size) for info in infos}, warn)
        datasets = [dataset for dataset in job.datasets if dataset.info.name in plan.sizes]
        pairs = [dataset for dataset in datasets if dataset.info.name not in windows]
        tables = _read_first_rank_first(
            ranks, lambda: build_tables(pairs, encoder, options, store, progress)
        )
        objective = Objective(job.losses, [d.info for d in datasets])
        if computes_losses:
            _require_columns(plan, tables, objective)
        # The longest text decides how large a chunk can be.
        fitted_settings = fit_token_budget(
            work, settings, encoder, [*tables.values(), *windows.values()], ranks
        )
        if computes_losses and job.guides is not None:
            reads_rows_again = len(plan.starts) > 2
            request = GuideRequest(pairs, ranks.device, store, reads_rows_again, ranks, progress)
            for name, guide in job.guides(request).items():
                tables[name] = dataclasses.replace(tables[name], guide=guide)
        encoder.module.train(options.dropout)
        # Split weights would stay gathered after a forward pass without a backward pass.
        draws_random = draws_random_numbers(encoder, fitted_settings.autocast)
        if computes_losses and warn and ranks.is_first and ranks.size > 1:
            _warn_of_ranks(objective, plan.sizes, ranks.size, draws_random, warn)
        if splits_weights:
            split_weights(encoder, ranks)
        yield Session(
            job=job,
            ranks=ranks,
            plan=plan,
            datasets=datasets,
            objective=objective,
            encoder=encoder,
            tables=tables,
            windows=windows,
            encode_plan=_build_encode_plan(job, fitted_settings, encoder, ranks, draws_random),
            sampling=TextSampling(options.positives, options.hard_negatives, job.seed),
            progress=progress,
            clock=clock or SaveClock(),
            # Without a listener, and on other ranks than the first, warnings are dropped.
            warn=warn if warn and ranks.is_first else lambda _: None,
        )


def _join_started_ranks(machine: Machine) -> RankGroup:
    if machine.ranks == 1:
        return RankGroup(device=machine.device)
    ranks = join_ranks(machine.device)
    if ranks.size != machine.ranks:
        raise RanksError(
            f"{count_noun(machine.ranks, 'rank')} shall train, and {ranks.size} started"
        )
    return ranks


def _read_first_rank_first(ranks: RankGroup, read: Callable[[], T]) -> T:
    """Return what `read` finds or writes; the other ranks find the first rank's files, if they see them."""

    def read_and_drop() -> None:  # tables are no JSON, which alone can be shared
        read()

    ranks.run_on_first_rank(read_and_drop)
    return read()


def _refuse_job(job: FitJob, splits_weights: bool, computes_losses: bool) -> None:
    """Refuse losses that do not fit the data, unknown names in options, and what ranks cannot split."""
    infos = [dataset.info for dataset in job.datasets]
    refuse_unknown_names({"loss": job.losses, **vars(job.options)}, infos)
    if computes_losses:
        if model_problems := job.backbone.describe(job.checkpoint).training_problems:
            raise CheckpointError("\n".join(model_problems))
        if problems := [p for info in infos for p in find_loss_problems(job.losses, info)]:
            raise DataError("\n".join(problems))
    for info in infos if splits_weights else ():
        if _needs_windows(job, info):
            raise CheckpointError(
                "a head that predicts tokens shares weights with the model, which ranks cannot split yet; "
                "train token losses without --shard"
            )
        if info.media is not None:
            # Ranks gather a tower's weights together, so all of them would have to run it in every chunk.
            raise DataError(
                f"{info.media.place}: dataset '{info.name}' has media, with which ranks cannot split the "
                "model yet; train it without --shard"
            )


def _needs_windows(job: FitJob, info: DatasetInfo) -> bool:
    return cuts_windows(job.losses.of(info.name, info.task) or (), info)


def _load_encoder(job: FitJob, ranks: RankGroup) -> Encoder:
    """Return the job's encoder, with a head if a loss predicts tokens."""
    infos = [dataset.info for dataset in job.datasets]
    predicts_tokens = any(_needs_windows(job, info) for info in infos)
    losses = [loss for info in infos for loss in job.losses.of(info.name, info.task) or ()]
    if predicts_tokens and (
        problems := list(find_prediction_problems(losses, job.backbone, job.checkpoint))
    ):
        raise CheckpointError("\n".join(problems))
    encoder = job.backbone.load(
        job.checkpoint, device=ranks.device, dtype="float32", predicts_tokens=predicts_tokens
    )
    if predicts_tokens and job.options.packing is not None:
        assert isinstance(encoder, TokenPredictor)
        if problem := find_packing_problem(encoder):
            raise CheckpointError(f"{job.checkpoint}: {problem}")
    return encoder


def _build_window_tables(
    job: FitJob, encoder: Encoder, store: Path, progress: Progress
) -> dict[str, WindowTable]:
    """Return the windows of the datasets of single texts whose losses are over tokens, by name."""
    windows = {}
    for dataset in job.datasets:
        if _needs_windows(job, dataset.info):
            assert isinstance(encoder, TokenPredictor)
            table = build_windows(dataset, encoder, job.options, store, progress)
            windows[dataset.info.name] = table
    return windows


def _plan_batches(job: FitJob, pool: Pool, warn: Warn | None) -> BatchPlan:
    """Return the job's batch plan; warnings of its samplers and its length go to `warn`, if given."""
    options = job.options
    with warnings.catch_warnings(record=warn is not None) as caught:
        if warn is not None:
            warnings.simplefilter("always", UserWarning)
        plan = BatchPlan(
            pool,
            job.sampler,
            seed=job.seed,
            epochs=options.epochs or 1.0,
            max_steps=options.max_steps,
            negatives=resolve_negatives(options.negatives, job.backbone.kind),
            in_batch_datasets=_list_in_batch_datasets(job),
        )
    if job.backbone.kind == "pair_score" and any(in_batch for _, in_batch in plan.list_groups()):
        raise DataError(NO_OTHER_ROWS_MESSAGE)
    if warn is None:
        return plan
    for caught_warning in caught or ():
        warn(str(caught_warning.message))
    warmup = options.warmup_steps or 0
    if warmup >= plan.steps:
        warn(
            f"the training has {count_noun(plan.steps, 'step')} and warmup_steps is {warmup:,}, so the "
            "learning rate never stays at its highest; lower warmup_steps, or give warmup_ratio"
        )
    return plan


def _warn_of_ranks(
    objective: Objective, names: Iterable[str], size: int, draws_random: bool, warn: Warn
) -> None:
    """Warn of dropout, and of losses that compare rows and do not see those of other ranks."""
    losses = [loss for name in names for loss in objective.of(name)]
    lone = [type(loss).__name__ for loss in losses if loss.compares_rows and not loss.cross_rank]
    listed = ", ".join(dict.fromkeys(lone))
    reasons = ["each draws its own dropout (dropout: false draws none)"] if draws_random else []
    if listed:
        reasons.append(f"{listed} compares the rows of each alone (cross_rank: true compares all)")
    if reasons:
        warn(f"{size} ranks train another model than one would: {', and '.join(reasons)}")


def _list_in_batch_datasets(job: FitJob) -> list[str]:
    """Return the names of the datasets with a loss that by default contrasts each row with the others."""

    def contrasts_rows(info: DatasetInfo) -> bool:
        losses = job.losses.of(info.name, info.task) or ()
        return any(isinstance(x, Loss) and info.task in x.in_batch_tasks for x in losses)

    return [dataset.info.name for dataset in job.datasets if contrasts_rows(dataset.info)]


def _build_encode_plan(
    job: FitJob, settings: MachineSettings, encoder: Encoder, ranks: RankGroup, draws_random: bool
) -> EncodePlan:
    return EncodePlan(
        token_budget=settings.token_budget,
        kept_tokens=job.options.kept_tokens,
        kept_bytes=measure_activation_budget(
            encoder.module, find_device(encoder), ranks.local_size
        ),
        autocast=settings.autocast,
        draws_random=draws_random,
        ranks=ranks,
        splits_weights=any(is_split(parameter) for parameter in encoder.module.parameters()),
        packing=job.options.packing,
    )


def _require_columns(
    plan: BatchPlan, tables: Mapping[str, ExampleTable], objective: Objective
) -> None:
    """Refuse rows without a column that losses read."""
    rows = {info.name: rows for info, rows in plan.pool.items()}
    for name, in_batch in plan.list_groups():
        for loss in objective.of(name):
            tables[name].require_columns(loss.needs, rows[name], type(loss).__name__, in_batch)
