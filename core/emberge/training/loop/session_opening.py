"""Opening of a session: the preparation of a training or a measurement before its first batch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from emberge.contracts import (
    Dataset,
    DatasetInfo,
    Encoder,
    Machine,
    Pool,
    TokenPredictor,
    cuts_windows,
    prediction_problems,
)
from emberge.devices import limit_torch_threads
from emberge.encoding import (
    EncodePlan,
    activation_budget,
    device_of,
    draws_random_numbers,
    packing_problem,
)
from emberge.errors import CheckpointError, DataError
from emberge.ranks import Ranks, RanksError, is_split, join_ranks, split_weights
from emberge.training.fit_options import PAIRS_ALONE, FitJob, choose_negatives
from emberge.training.loop.checkpoints import SaveClock
from emberge.training.loop.session import Session
from emberge.training.loop.token_budget import EngineSettings, choose_engine, fit_token_budget
from emberge.training.objective import Objective
from emberge.training.plan.batch_plan import BatchPlan, refuse_unknown_names
from emberge.training.tables.batch_texts import TextSampling
from emberge.training.tables.example_table import ExampleTable, build_tables
from emberge.training.tables.guides import add_guides
from emberge.training.tables.text_windows import WindowTable, build_windows

Progress = Callable[..., None]


@contextlib.contextmanager
def open_session(
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

    `work` keeps the settings chosen at the first start, so that later starts compute the same; `store` keeps
    token ids for other sessions. Without `takes_losses`, rows may lack columns that losses read, and no guide
    is loaded.

    Raises:
        CheckpointError: if the checkpoint cannot be loaded.
        DataError: if the losses or the sampler cannot use the data.
        RanksError: if the ranks do not find each other.
    """
    if takes_losses and (harm := job.backbone.describe(job.checkpoint).training_problems):
        raise CheckpointError("\n".join(harm))
    ranks = _join_started_ranks(machine)
    infos = [dataset.info for dataset in job.datasets]
    _refuse_twins(infos)
    _refuse_media(job, machine)
    refuse_unknown_names({"loss": job.losses, **vars(job.options)}, infos)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        text_datasets = [dataset for dataset in job.datasets if _cuts_windows(job, dataset.info)]
        encoder: Encoder | None = None
        windows: dict[str, WindowTable] = {}
        if text_datasets:
            # The plan's rows of these datasets are windows.
            Objective(job.losses, [dataset.info for dataset in text_datasets], ranks.device)
            progress(0, 0, "", "loading the model")
            encoder = _load_encoder(job, machine, ranks)
            progress(0, 0, "", "cutting texts into windows")
            windows = _cut_windows(text_datasets, encoder, job, ranks, store or work, progress)
        pool = _build_pool(job.datasets, windows)
        plan = _plan_batches(job, pool, warn)
        used_datasets = [dataset for dataset in job.datasets if dataset.info.name in plan.sizes]
        settings = ranks.on_first_rank(
            lambda: asdict(choose_engine(work, ranks.device, job.options, ranks.local_size))
        )
        engine = EngineSettings(**settings)
        stack.enter_context(limit_torch_threads(engine.threads))
        objective = Objective(job.losses, [d.info for d in used_datasets], ranks.device)
        if encoder is None:
            progress(0, 0, "", "loading the model")
            encoder = _load_encoder(job, machine, ranks)
        progress(0, 0, "", "tokenising")
        pair_datasets = [dataset for dataset in used_datasets if dataset.info.name not in windows]

        def read() -> dict[str, ExampleTable]:
            return build_tables(pair_datasets, encoder, job.options, store or work, progress)

        # The other ranks find the first rank's tables, or write tables for another machine.
        ranks.on_first_rank(lambda: read() and None)
        tables = read()
        if takes_losses:
            _require_rows(plan, tables, objective)
        engine = fit_token_budget(
            work, engine, encoder, [*tables.values(), *windows.values()], ranks
        )
        if takes_losses:
            tables = add_guides(
                tables,
                pair_datasets,
                objective,
                model_of=job.guides,
                backbone=job.backbone,
                device=ranks.device,
                store=store or work,
                again=len(plan.starts) > 2,
                ranks=ranks,
                progress=progress,
            )
        encoder.module.train(job.options.dropout)
        # Split weights would stay gathered after a forward pass without a backward pass.
        draws_random = draws_random_numbers(encoder, engine.autocast)
        if machine.shard and ranks.size > 1:
            split_weights(encoder, ranks)
        yield Session(
            job=job,
            ranks=ranks,
            pool=pool,
            plan=plan,
            datasets=used_datasets,
            objective=objective,
            encoder=encoder,
            tables=tables,
            windows=windows,
            encode_plan=_encode_plan(job, engine, encoder, ranks, draws_random),
            sampling=TextSampling(job.options.positives, job.options.hard_negatives, job.seed),
            progress=progress,
            clock=clock or SaveClock(),
            warn=(warn if ranks.is_first else None) or _warn_nobody,
        )


def _warn_nobody(_: str) -> None:
    """Ignore a warning, as nothing receives it or the first rank warns for all ranks."""


def _join_started_ranks(machine: Machine) -> Ranks:
    if machine.ranks == 1:
        return Ranks(device=machine.device)
    ranks = join_ranks(machine.device)
    if ranks.size != machine.ranks:
        raise RanksError(f"{machine.ranks} ranks shall train, and {ranks.size} were started")
    return ranks


def _refuse_media(job: FitJob, machine: Machine) -> None:
    """Refuse images and clips that the model cannot read, or that sharded ranks cannot read together.

    Raises:
        DataError: if there are problems; has a line for each.
    """
    problems: list[str] = []
    for info in (dataset.info for dataset in job.datasets):
        if info.media is None:
            continue
        if _cuts_windows(job, info):
            problems.append(
                f"{info.media.place}: dataset '{info.name}' has media, and losses over tokens read text alone"
            )
        problems += job.backbone.check_media(job.checkpoint, info.media)
        if machine.shard and machine.ranks > 1:
            # Ranks gather a tower's weights together, so all of them would have to run it in every
            # chunk.
            problems.append(
                f"{info.media.place}: dataset '{info.name}' has media, with which ranks cannot split the "
                "model yet; train it without --shard"
            )
    if problems:
        raise DataError("\n".join(problems))


def _refuse_twins(infos: Sequence[DatasetInfo]) -> None:
    names = [info.name for info in infos]
    repeated_names = sorted({name for name in names if names.count(name) > 1})
    if repeated_names:
        raise DataError(f"two datasets are named '{repeated_names[0]}'; give one another name")


def _load_encoder(job: FitJob, machine: Machine, ranks: Ranks) -> Encoder:
    """Return the job's encoder, with a head if a loss predicts tokens."""
    if not any(_cuts_windows(job, dataset.info) for dataset in job.datasets):
        return job.backbone.load(job.checkpoint, device=ranks.device, dtype="float32")
    if machine.shard and machine.ranks > 1:
        raise CheckpointError(
            "a head that predicts tokens shares weights with the model, which ranks cannot split yet; "
            "train token losses without --shard"
        )
    losses = [
        loss
        for dataset in job.datasets
        for loss in job.losses.of(dataset.info.name, dataset.info.task) or ()
    ]
    if problems := list(prediction_problems(losses, job.backbone, job.checkpoint)):
        raise CheckpointError("\n".join(problems))
    return job.backbone.load(job.checkpoint, device=ranks.device, dtype="float32", predicts=True)


def _cuts_windows(job: FitJob, info: DatasetInfo) -> bool:
    return cuts_windows(job.losses.of(info.name, info.task) or (), info)


def _cut_windows(
    datasets: Sequence[Dataset],
    encoder: Encoder,
    job: FitJob,
    ranks: Ranks,
    store: Path,
    progress: Progress,
) -> dict[str, WindowTable]:
    """Return the windows of datasets of single texts, by name.

    Raises:
        CheckpointError: if the encoder predicts no tokens, or if packed texts would change each other's
            results.
    """
    if not isinstance(encoder, TokenPredictor):
        raise CheckpointError(
            f"{job.checkpoint}: {type(encoder).__name__} predicts no tokens (TokenPredictor); choose a "
            "backbone that does"
        )
    if job.options.packing is not None and (problem := packing_problem(encoder)):
        raise CheckpointError(f"{job.checkpoint}: {problem}")

    def read() -> dict[str, WindowTable]:
        return {
            dataset.info.name: build_windows(dataset, encoder, job.options, store, progress)
            for dataset in datasets
        }

    ranks.on_first_rank(lambda: read() and None)
    return read()


def _build_pool(datasets: Sequence[Dataset], windows: Mapping[str, WindowTable]) -> Pool:
    pool: dict[DatasetInfo, Sequence[int]] = {}
    for dataset in datasets:
        window_table = windows.get(dataset.info.name)
        info = dataset.info if window_table is None else window_table.info
        pool[info] = range(info.size)
    return pool


def _plan_batches(job: FitJob, pool: Pool, warn: Callable[[str], None] | None) -> BatchPlan:
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
            negatives=choose_negatives(options.negatives, job.backbone.kind),
        )
    if job.backbone.kind == "pair_score" and any(in_batch for _, in_batch in plan.groups()):
        raise DataError(PAIRS_ALONE)
    for word in caught or ():
        assert warn is not None
        warn(str(word.message))
    warmup = options.warmup_steps or 0
    if warn is not None and warmup >= plan.steps:
        warn(
            f"the training has {plan.steps:,} steps and warmup_steps is {warmup:,}, so the learning rate "
            "never stays at its highest; lower warmup_steps, or give warmup_ratio"
        )
    return plan


def _require_rows(
    plan: BatchPlan, tables: Mapping[str, ExampleTable], objective: Objective
) -> None:
    """Refuse rows without a column that losses read."""
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
        kept_bytes=activation_budget(module, device_of(encoder), ranks.local_size),
        autocast=engine.autocast,
        dropout=draws,
        ranks=ranks,
        sharded=any(is_split(parameter) for parameter in module.parameters()),
        packing=job.options.packing,
    )
