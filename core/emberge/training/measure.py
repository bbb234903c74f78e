"""Statistics of a model on data: its diagonal Fisher information, or Gram matrices of layers' inputs.

The batches are those that a training would take, without dropout. Nothing of the texts is kept but sums.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from emberge.contracts.backbone import Backbone, Encoder, NamesWeights, TokenisedText
from emberge.contracts.dataset import Dataset
from emberge.contracts.loss import Loss
from emberge.contracts.option import PerDataset
from emberge.contracts.sampler import Sampler
from emberge.contracts.step import Rehearsal
from emberge.devices import torch_threads
from emberge.errors import CheckpointError, EmbergeError
from emberge.training.batches import Draw, DrawnBatch, draw_batch
from emberge.training.encode import EncodePlan, encode_and_backward
from emberge.training.fit import require_rows, tables_of
from emberge.training.grams import WINDOW, GramCounter, plan_passes
from emberge.training.identity import settle_engine
from emberge.training.memory import activation_budget
from emberge.training.objective import Objective
from emberge.training.options import FitOptions
from emberge.training.plan import BatchPlan
from emberge.training.saves import clear_torn, latest_state, save_state
from emberge.training.table import ExampleTable

__all__ = ["Measured", "Measurement", "StoredTensors", "measure_model"]

SECONDS_BETWEEN_SAVES = 30.0
# Saving by the clock may cost one part in this many of the time.
SAVING_SHARE = 20
Progress = Callable[..., None]
# From a file's name and its numbers by tensor to the file that was written.
Write = Callable[[str, Mapping[str, Tensor]], Path]


@dataclass(frozen=True)
class StoredTensors:
    """The tensors of a checkpoint that hold floating-point numbers, by the names that merges know them by.

    `vocabulary` are those whose rows are tokens; `canonical` gives names on disk, such as an encoder's, as
    these.
    """

    shapes: Mapping[str, tuple[int, ...]]
    vocabulary: frozenset[str]
    canonical: Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What is measured of which model, on which data.

    Of `options` those count that say which texts of a row are taken, how long they may be, and how many
    steps there are. `memory` bounds the sums of Gram matrices, in bytes.
    """

    measure: Literal["fisher", "gram"]
    backbone: Backbone
    checkpoint: Path
    stored: StoredTensors
    datasets: Sequence[Dataset]
    sampler: Sequence[Sampler]
    losses: PerDataset[tuple[Loss, ...]]
    options: FitOptions
    seed: int
    device: str = "cpu"
    memory: int | None = None


@dataclass(frozen=True)
class Measured:
    """Files of numbers by tensor, and what they were measured on."""

    parts: tuple[Path, ...]
    facts: Mapping[str, str]


def measure_model(
    what: Measurement,
    work: Path,
    *,
    write: Write,
    store: Path,
    progress: Progress,
    rehearsal: Rehearsal | None = None,
) -> Measured:
    """Measure one model, have its numbers written into `work`, and go on from there after a kill.

    Of the Fisher information there is an entry a tensor, float32, the mean over batches of the squared
    gradient of the batch's loss; a tensor that no embedding depends on has the single number 0. There is a
    Gram matrix, float32 [in, in], for each linear layer, the sum of x xᵀ over tokens, and for the embedding
    the counts of tokens [vocabulary].

    Raises:
        CheckpointError: for a checkpoint that cannot be loaded, or whose weights cannot be told apart.
        DataError: for data that the losses or the sampler cannot use.
    """
    engine = settle_engine(work, what.device, what.options)
    with torch_threads(engine.threads), torch.random.fork_rng():
        session = _Session(what, store, progress, rehearsal, engine.token_budget)
        run = {"fisher": _fisher, "gram": _grams}[what.measure]
        parts = tuple(run(session, work, write))
    return Measured(parts, session.facts())


class _Session:
    """A model ready to be measured, and the batches to measure it on."""

    def __init__(
        self,
        what: Measurement,
        store: Path,
        progress: Progress,
        rehearsal: Rehearsal | None,
        token_budget: int,
    ) -> None:
        self.what, self.progress = what, progress
        options = what.options
        self.plan = BatchPlan(
            {d.info: range(len(d)) for d in what.datasets},
            what.sampler,
            seed=what.seed,
            epochs=options.epochs or 1.0,
            max_steps=rehearsal.steps if rehearsal else options.max_steps,
            negatives=options.negatives,
        )
        self.used = [d for d in what.datasets if d.info.name in self.plan.sizes]
        self.objective = Objective(what.losses, [d.info for d in self.used], what.device)
        self.encoder = what.backbone.load(what.checkpoint, device=what.device, dtype="float32")
        self.encoder.module.eval()
        self.called = _called(self.encoder, what.stored)
        self.tables: dict[str, ExampleTable] = tables_of(
            self.used, self.encoder, options, store, progress
        )
        if what.measure == "fisher":
            require_rows(self.plan, self.tables, self.objective)
        self.device = next(self.encoder.module.parameters()).device
        budget = activation_budget(self.encoder.module, self.device)
        self.encode = EncodePlan(token_budget, options.kept_tokens, budget, None, dropout=False)
        self.draw = Draw(options.positives, options.hard_negatives, options.fill, what.seed)

    def batch(self, step: int) -> DrawnBatch:
        """The texts of one batch."""
        return draw_batch(self.plan[step], self.tables, self.draw, unique=True)

    def facts(self) -> dict[str, str]:
        """What the numbers were measured on, without any text."""
        data = [
            {
                "name": d.info.name,
                "task": d.info.task,
                "rows": self.plan.sizes[d.info.name],
                "content": d.fingerprint,
            }
            for d in self.used
        ]
        facts = {
            "data": json.dumps(data),
            "seed": str(self.what.seed),
            "batches": str(self.plan.steps),
        }
        if self.what.measure == "fisher":
            losses = {d.info.name: repr(self.objective.of(d.info.name)) for d in self.used}
            facts["losses"] = json.dumps(losses)
        return facts


def _called(encoder: Encoder, tensors: StoredTensors) -> dict[str, str]:
    """Each parameter's canonical name.

    Raises:
        CheckpointError: when it has none, or another shape on disk.
    """
    if not isinstance(encoder, NamesWeights):
        raise CheckpointError(
            f"{type(encoder).__name__} does not say what its weights are called on disk (stored_names), "
            "so nothing can be measured of it"
        )
    stored = encoder.stored_names()
    names = dict(zip(stored, tensors.canonical(list(stored.values())), strict=True))
    found = {}
    for parameter, tensor in encoder.module.named_parameters():
        name = names.get(parameter, parameter)
        if tensors.shapes.get(name) != tuple(tensor.shape):
            raise CheckpointError(
                f"{name}: the encoder has it as {list(tensor.shape)} and the checkpoint has not, so it "
                "cannot be told what belongs to which tensor"
            )
        found[parameter] = name
    return found


# ── Fisher information ──────────────────────────────────────────────────────────────────────────


def _fisher(session: _Session, work: Path, write: Write) -> Iterator[Path]:
    parameters = dict(session.encoder.module.named_parameters())
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for step in _steps(session, sums, work, range(session.plan.steps)):
        drawn = session.batch(step)
        passed = encode_and_backward(
            session.encoder,
            drawn.texts,
            drawn.objective(session.objective, session.device),
            session.encode,
            seed=0,
            layers=session.objective.layers([p.dataset for p in session.plan[step].parts]),
        )
        if not bool(torch.isfinite(passed.loss)):
            raise EmbergeError(f"the loss of batch {step} is not finite; is the model sound?")
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                sums[name].addcmul_(parameter.grad, parameter.grad)
        session.encoder.module.zero_grad(set_to_none=True)
    means = {session.called[n]: total / session.plan.steps for n, total in sums.items()}
    shapes = session.what.stored.shapes
    nothing = {name: torch.zeros(()) for name in shapes if name not in means}
    yield write("fisher.safetensors", {**means, **nothing})


# ── Gram matrices ───────────────────────────────────────────────────────────────────────────────


def _grams(session: _Session, work: Path, write: Write) -> Iterator[Path]:
    what, first = session.what, session.batch(0).texts[0]
    called = session.called
    passes = plan_passes(session.encoder, called, what.stored.vocabulary, first, what.memory)
    for number, layers in enumerate(passes):
        name = f"gram-{number}.safetensors"
        if not (work / name).is_file():
            note = f"pass {number + 1} of {len(passes)}" if len(passes) > 1 else ""
            counter = GramCounter(session.encoder, layers, session.encode.token_budget)
            _count(session, counter, work / f"pass-{number}", note)
            write(name, dict(counter.entries(called)))
        yield work / name


def _count(session: _Session, counter: GramCounter, work: Path, note: str) -> None:
    texts: list[TokenisedText] = []
    steps = range(session.plan.steps)
    with counter:
        for step in _steps(session, counter.sums, work, steps, lambda: not texts, note):
            texts.extend(session.batch(step).texts)
            if len(texts) >= WINDOW or step + 1 == len(steps):
                counter.add(texts)
                texts.clear()


# ── going on after a kill ───────────────────────────────────────────────────────────────────────


def _steps(
    session: _Session,
    sums: Mapping[str, Tensor],
    work: Path,
    steps: range,
    settled: Callable[[], bool] = lambda: True,
    note: str = "",
) -> Iterator[int]:
    """The steps that are left; between them the sums are saved now and then, where they are `settled`."""
    states = work / "states"
    clear_torn(states)
    state = latest_state(states)
    if state is not None:
        for name, total in sums.items():
            total.copy_(state.tensors[name])
    last, cost = time.monotonic(), 0.0
    for step in steps[state.step if state is not None else 0 :]:
        yield step
        session.progress(step + 1, len(steps), "batches", note)
        now = time.monotonic()
        if settled() and now - last >= max(SECONDS_BETWEEN_SAVES, SAVING_SHARE * cost):
            save_state(states, step + 1, sums, {})
            last = time.monotonic()
            cost = last - now
