"""Session: model, batches and losses of a training or a measurement, prepared once."""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from emberge.contracts import (
    COLUMNS,
    Dataset,
    DatasetInfo,
    Encoder,
    Machine,
    Pool,
    Rehearsal,
    Rows,
    TokenisedText,
    TokenLoss,
    TokenPredictor,
    prediction_problems,
    score_problems,
)
from emberge.devices import torch_threads
from emberge.encoding import (
    EncodePlan,
    PassResult,
    TokenScores,
    activation_budget,
    corrupted,
    device_of,
    draws_random_numbers,
    encode_and_backward,
    packing_problem,
    predict_and_backward,
    score_texts,
)
from emberge.errors import CheckpointError, DataError
from emberge.files import clear_torn
from emberge.ranks import Ranks, RanksError, is_split, join_ranks, shard_rows, split_weights
from emberge.seeds import stable_seed
from emberge.training.fit_job import FitJob
from emberge.training.loop.checkpoints import latest_state, save_state
from emberge.training.loop.token_budget import EngineSettings, budgeted, choose_engine
from emberge.training.objective import Objective
from emberge.training.plan.batch_plan import BatchPlan, PlannedBatch, PlannedPart
from emberge.training.plan.lazy_rows import in_pieces
from emberge.training.plan.plan_fingerprint import refuse_unknown_names
from emberge.training.tables.batch_texts import DrawnBatch, TextSampling, draw_batch
from emberge.training.tables.example_table import ExampleTable, build_tables
from emberge.training.tables.guides import with_guides
from emberge.training.tables.text_windows import WindowTable, build_windows

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
    token ids, `windows` those of single texts. `encode_plan` is how a batch runs in chunks, `sampling` which
    texts of a row are drawn.
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
    windows: Mapping[str, WindowTable]
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
        if takes_losses and (harm := job.backbone.describe(job.checkpoint).training_problems):
            raise CheckpointError("\n".join(harm))
        ranks = _join(machine)
        infos = [dataset.info for dataset in job.datasets]
        _refuse_twins(infos)
        _refuse_media(job, machine)
        refuse_unknown_names({"loss": job.losses, **vars(job.options)}, infos)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng())
            single = [dataset for dataset in job.datasets if dataset.info.task == "text"]
            encoder: Encoder | None = None
            windows: dict[str, WindowTable] = {}
            if single:
                # Their windows are the rows that the plan counts.
                Objective(job.losses, [dataset.info for dataset in single], ranks.device)
                encoder = _load(job, machine, ranks)
                windows = _cut(single, encoder, job, ranks, store or work, progress)
            pool = _pool(job.datasets, windows, job.rehearsal)
            plan = _plan(job, pool, warn)
            used = [dataset for dataset in job.datasets if dataset.info.name in plan.sizes]
            chosen = ranks.on_first_rank(
                lambda: asdict(choose_engine(work, ranks.device, job.options, ranks.beside))
            )
            engine = EngineSettings(**chosen)
            stack.enter_context(torch_threads(engine.threads))
            objective = Objective(job.losses, [d.info for d in used], ranks.device)
            encoder = encoder or _load(job, machine, ranks)
            pairs = [dataset for dataset in used if dataset.info.name not in windows]

            def read() -> dict[str, ExampleTable]:
                return build_tables(pairs, encoder, job.options, store or work, progress)

            # The others find what the first has written, or write it for another machine.
            ranks.on_first_rank(lambda: read() and None)
            tables = read()
            if takes_losses:
                _require_rows(plan, tables, objective)
            engine = budgeted(work, engine, encoder, [*tables.values(), *windows.values()], ranks)
            if takes_losses:
                tables = with_guides(
                    tables,
                    pairs,
                    objective,
                    model_of=job.guides,
                    backbone=job.backbone,
                    device=ranks.device,
                    store=store or work,
                    again=len(plan.starts) > 2,
                    all_rows=plan.reads_all,
                    ranks=ranks,
                )
            encoder.module.train(job.options.dropout)
            # Weights that are split would stay whole after a pass that has no backward pass.
            draws = draws_random_numbers(encoder, _autocast(engine))
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
                windows=windows,
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
        """Return the texts of one batch of pairs on this rank, also of columns that no loss embeds."""
        return self._draw(batch, lambda _: COLUMNS).texts

    def backward(self, batch: PlannedBatch) -> PassResult:
        """Run both passes over one batch, and return the result with the whole batch's loss.

        Gradients are added to those of the model and of learned parameters; they are this rank's share.
        """
        seed = stable_seed(self.plan.seed, "dropout", batch.step, self.ranks.rank)
        passed = [
            self._predict(batch, number, seed)
            for number, part in enumerate(batch.parts)
            if part.dataset in self.windows
        ]
        others = tuple(part for part in batch.parts if part.dataset not in self.windows)
        pairs = replace(batch, parts=others)
        if pairs.parts:
            passed.append(self._encode(pairs, pairs.size / batch.size, seed))
        whole = functools.reduce(lambda one, other: one + other, passed)
        return replace(whole, loss=self.ranks.total(whole.loss))

    def _encode(self, batch: PlannedBatch, share: float, seed: int) -> PassResult:
        """Run both passes over the pairs of a batch, which count by their share of its rows."""
        drawn = self._draw(batch, self.objective.embeds)
        return encode_and_backward(
            self.encoder,
            drawn.texts,
            drawn.objective(self.objective, self.device),
            self.encode_plan,
            seed=seed,
            layers=self.objective.layers([part.dataset for part in batch.parts]),
            weight=share,
        )

    def _predict(self, batch: PlannedBatch, place: int, seed: int) -> PassResult:
        """Run the passes of losses over the tokens of one part of a batch, which counts by `_share`.

        A corruption depends on seed, step, dataset and window alone, not on ranks or chunks. A term of the
        model's own is the mean of the losses' passes, whatever their weights are.
        """
        encoder, part = self.encoder, batch.parts[place]
        assert isinstance(encoder, TokenPredictor)
        sequences = self.windows[part.dataset].sequences
        own = part.rows[shard_rows(len(part.rows), self.ranks.rank, self.ranks.size)]
        share = self._share(batch, place)
        found = []
        losses = self.objective.over_tokens(part.dataset)
        for number, loss in enumerate(losses):
            key = (self.plan.seed, "corruption", batch.step, part.dataset, number)
            texts = [
                corrupted(encoder, sequences[int(row)], loss, stable_seed(*key, int(row)))
                for row in own
            ]
            found.append(
                predict_and_backward(
                    encoder,
                    texts,
                    loss,
                    self.encode_plan,
                    seed=stable_seed(seed, place, number),
                    weight=loss.weight * share,
                    auxiliary_weight=share / len(losses),
                )
            )
        return functools.reduce(lambda one, other: one + other, found)

    def _share(self, batch: PlannedBatch, place: int) -> float:
        """Return a part's share of its batch: of tokens where all are single texts, else of rows."""
        parts = batch.parts
        if any(part.dataset not in self.windows for part in parts):
            return len(parts[place].rows) / batch.size
        tokens = [self._tokens(part) for part in parts]
        return tokens[place] / sum(tokens)

    def _tokens(self, part: PlannedPart) -> int:
        counted = self.windows[part.dataset].info.tokens
        assert counted is not None
        return int(counted[part.rows].sum())

    def score_texts(self, dataset: str, loss: TokenLoss, seed: int) -> TokenScores:
        """Return a loss over the windows of a dataset of single texts, one by one and without gradients.

        Their corruption depends on seed, dataset and place alone.
        """
        assert isinstance(self.encoder, TokenPredictor)
        return score_texts(
            self.encoder,
            self.windows[dataset].sequences,
            loss,
            seed_of=lambda place: stable_seed(seed, "scored texts", dataset, place),
            token_budget=self.encode_plan.token_budget,
        )

    def _draw(self, batch: PlannedBatch, embeds: Callable[[str], frozenset[str]]) -> DrawnBatch:
        return draw_batch(
            batch,
            self.tables,
            self.sampling,
            unique=not self.encode_plan.dropout,
            embeds=embeds,
            ranks=self.ranks,
        )

    def data_rows(self, dataset: str, rows: Rows) -> Rows:
        """Return the rows of a dataset's own that rows of the plan are taken of: the texts of windows."""
        cut = self.windows.get(dataset)
        if cut is None:
            return rows
        return np.unique(np.concatenate([cut.texts[piece] for piece in in_pieces(rows)]))

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


def _refuse_media(job: FitJob, machine: Machine) -> None:
    """Refuse images and clips that the model does not read, or that ranks cannot read in step.

    Raises:
        DataError: with a line for each problem.
    """
    found: list[str] = []
    for info in (dataset.info for dataset in job.datasets):
        if info.media is None:
            continue
        if info.task == "text":
            found.append(
                f"{info.media.where}: dataset '{info.name}' has media, and losses over tokens read text alone"
            )
        found += job.backbone.check_media(job.checkpoint, info.media)
        if machine.shard and machine.ranks > 1:
            # Ranks hand the weights of a tower round, so all of them would have to call it in every chunk.
            found.append(
                f"{info.media.where}: dataset '{info.name}' has media, with which ranks cannot split the "
                "model yet; train it without --shard"
            )
    if found:
        raise DataError("\n".join(found))


def _refuse_twins(infos: Sequence[DatasetInfo]) -> None:
    names = [info.name for info in infos]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two datasets are named '{twice[0]}'; give one another name")


def _load(job: FitJob, machine: Machine, ranks: Ranks) -> Encoder:
    """Return the job's encoder, with a head where a loss predicts tokens."""
    if not any(dataset.info.task == "text" for dataset in job.datasets):
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


def _cut(
    datasets: Sequence[Dataset],
    encoder: Encoder,
    job: FitJob,
    ranks: Ranks,
    store: Path,
    progress: Progress,
) -> dict[str, WindowTable]:
    """Return the windows of datasets of single texts, by name.

    Raises:
        CheckpointError: for an encoder that predicts no tokens, or one whose texts would change each other
            where they are packed.
    """
    if not isinstance(encoder, TokenPredictor):
        raise CheckpointError(
            f"{job.checkpoint}: {type(encoder).__name__} predicts no tokens (TokenPredictor); choose a "
            "backbone that does"
        )
    if job.options.packing is not None and (problem := packing_problem(encoder)):
        raise CheckpointError(f"{job.checkpoint}: {problem}")

    def begins(dataset: Dataset) -> bool:
        losses = job.losses.of(dataset.info.name, dataset.info.task) or ()
        return any(loss.bos for loss in losses if isinstance(loss, TokenLoss))

    def read() -> dict[str, WindowTable]:
        return {
            dataset.info.name: build_windows(
                dataset, encoder, job.options, store, progress, bos=begins(dataset)
            )
            for dataset in datasets
        }

    ranks.on_first_rank(lambda: read() and None)
    return read()


def _pool(
    datasets: Sequence[Dataset], windows: Mapping[str, WindowTable], rehearsal: Rehearsal | None
) -> Pool:
    pool: dict[DatasetInfo, Sequence[int]] = {}
    for dataset in datasets:
        cut = windows.get(dataset.info.name)
        info = dataset.info if cut is None else cut.info
        rows: Sequence[int] = range(info.size)
        if rehearsal and info.size:
            few = min(info.size, rehearsal.rows)
            rows = [i % few for i in range(REHEARSED_ROWS)]
        pool[info] = rows
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
        autocast=_autocast(engine),
        dropout=draws,
        ranks=ranks,
        sharded=any(is_split(parameter) for parameter in module.parameters()),
        packing=job.options.packing,
    )


def _autocast(engine: EngineSettings) -> torch.dtype | None:
    return torch.bfloat16 if engine.precision == "bfloat16" else None


def _sampling(job: FitJob) -> TextSampling:
    options = job.options
    return TextSampling(options.positives, options.hard_negatives, options.fill, job.seed)
