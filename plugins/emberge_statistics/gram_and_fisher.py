"""Measurements of a model over training batches: Gram matrices of linear layers, Fisher information.

Only sums are stored, no texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from emberge import CheckpointError, EmbergeError, Encoder, Machine, TokenisedText
from emberge.encoding import forward
from emberge.files import clear_torn
from emberge.merging import Statistics
from emberge.model_folder import Checkpoint
from emberge.tensor_names import find_prefix, is_vocabulary
from emberge.training import FitJob, PlannedBatch, SaveClock, Session, TrainingState, open_session
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

# Texts that are put in order of their length at once: more fill chunks better.
WINDOW_TEXTS = 512
# Sums of Gram matrices in memory at once where no limit is given.
DEFAULT_MEMORY_BYTES = 4 << 30

# Function from a file's name and its numbers by tensor to the path that it was written to.
WriteEntries = Callable[[str, Mapping[str, Tensor]], Path]


def measure_on_data(
    measure: Literal["fisher", "gram"],
    job: FitJob,
    work: Path,
    *,
    label: str,
    store: Path,
    machine: Machine,
    progress: Callable[..., None],
    clock: SaveClock | None = None,
) -> tuple[list[Path], dict[str, str]]:
    """Measure one model on the batches of a training, and go on from `work` after a kill.

    Returns: statistics files in `work` with the numbers under `label`, and facts of what they were measured
    on, without any text.

    Raises:
        CheckpointError: if the checkpoint cannot be loaded, or the encoder has no names of its weights.
        DataError: if the losses or the sampler cannot use the data.
    """

    def write_entries(name: str, values: Mapping[str, Tensor]) -> Path:
        entries = {tensor: {label: value} for tensor, value in values.items()}
        return Statistics(entries, measure=measure).write(work, name)

    stored = open_stored_tensors(job.checkpoint)
    with open_session(
        job,
        work=work,
        store=store,
        machine=machine,
        progress=progress,
        clock=clock,
        computes_losses=measure == "fisher",
    ) as session:
        if measure == "fisher":
            parts = [write_entries("fisher.safetensors", measure_fisher(session, stored, work))]
        else:
            parts = list(measure_grams(session, stored, work, write_entries, machine.memory))
        return parts, _describe_data(session, measure)


def _describe_data(session: Session, measure: str) -> dict[str, str]:
    """Return the data, seed, batches and losses of a measurement, without any text."""
    data = [
        {
            "name": dataset.info.name,
            "task": dataset.info.task,
            "rows": session.plan.sizes[dataset.info.name],
            "content": dataset.fingerprint,
        }
        for dataset in session.datasets
    ]
    facts = {
        "data": json.dumps(data),
        "seed": str(session.job.seed),
        "batches": str(session.plan.steps),
    }
    if measure == "fisher":
        names = [dataset.info.name for dataset in session.datasets]
        facts["losses"] = json.dumps({name: repr(session.objective.of(name)) for name in names})
    return facts


@dataclass(frozen=True)
class StoredTensors:
    """Mergeable tensors of a checkpoint by canonical name; those in `vocabulary` have a row per token."""

    shapes: Mapping[str, tuple[int, ...]]
    vocabulary: frozenset[str]

    def map_names(self, encoder: Encoder) -> dict[str, str]:
        """Return the canonical name of every parameter of an encoder that was loaded from the checkpoint.

        Raises:
            CheckpointError: if a parameter has no name, or has another shape on disk.
        """
        stored_names = encoder.stored_names()
        names = dict(
            zip(stored_names, self._convert_names(list(stored_names.values())), strict=True)
        )
        canonical_names = {}
        for parameter, tensor in encoder.module.named_parameters():
            name = names.get(parameter, parameter)
            if self.shapes.get(name) != tuple(tensor.shape):
                raise CheckpointError(
                    f"{name}: the encoder has it as {list(tensor.shape)} and the checkpoint has not, so "
                    "what is measured of it belongs to no tensor"
                )
            canonical_names[parameter] = name
        return canonical_names

    def _convert_names(self, stored: Sequence[str]) -> list[str]:
        """Return the canonical names of tensors on disk, without the prefix of the text backbone."""
        prefix = find_prefix(stored)
        return [n if n in self.shapes else n.removeprefix(prefix) for n in stored]


def open_stored_tensors(folder: Path) -> StoredTensors:
    """Return the mergeable tensors of a model folder.

    Raises:
        CheckpointError: if two tensors would have the same name.
    """
    specs = Checkpoint(folder).tensor_names.specs
    shapes = {name: spec.shape for name, spec in specs.items() if spec.mergeable}
    return StoredTensors(shapes, frozenset(filter(is_vocabulary, shapes)))


@dataclass(frozen=True)
class SummedInput:
    """A module's input, to be summed; `shared` are all modules that receive the same tensors."""

    module: str
    width: int
    shared: tuple[str, ...]
    tokens: bool = False
    """True if the inputs are token ids, whose Gram matrix is the diagonal of their counts."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the sum."""
        return (self.width,) if self.tokens else (self.width, self.width)

    @property
    def nbytes(self) -> int:
        """Size of the sum in float64."""
        return 8 * math.prod(self.shape)


def measure_grams(
    session: Session,
    stored: StoredTensors,
    work: Path,
    write_entries: WriteEntries,
    memory: int | None = None,
) -> Iterator[Path]:
    """Measure Gram matrices and yield the file of each pass over the data; finished passes are skipped.

    A linear layer has the sum of x xᵀ over tokens, float32 [in, in]; the embedding has the counts of tokens
    [vocabulary]. `memory` limits the sums of a pass, in bytes.

    Raises:
        CheckpointError: if no linear layer is called in a forward pass.
    """
    names = stored.map_names(session.encoder)
    first_text = session.draw_texts(session.plan[0])[0]
    passes = plan_passes(session.encoder, names, stored.vocabulary, first_text, memory)
    for number, layers in enumerate(passes):
        path = work / f"gram-{number}.safetensors"
        if not path.is_file():
            note = f"pass {number + 1} of {len(passes)}" if len(passes) > 1 else ""
            counter = GramCounter(session.encoder, layers, session.encode_plan.token_budget)
            _sum_inputs(session, counter, work / f"pass-{number}" / "states", note)
            write_entries(path.name, dict(counter.collect_entries(names)))
        yield path


def _sum_inputs(session: Session, counter: GramCounter, states: Path, note: str) -> None:
    texts: list[TokenisedText] = []
    with counter:
        for batch in _read_batches(session, counter.sums, states, lambda: not texts, note):
            texts.extend(session.draw_texts(batch))
            if len(texts) >= WINDOW_TEXTS or batch.step + 1 == session.plan.steps:
                counter.add(texts)
                texts.clear()


def _read_batches(
    session: Session,
    sums: Mapping[str, Tensor],
    states: Path,
    is_complete: Callable[[], bool] = lambda: True,
    note: str = "",
) -> Iterator[PlannedBatch]:
    """Yield the batches that a measurement has not used yet; between them, save its `sums` by the clock.

    The newest state in `states` is first loaded into `sums`. A state is saved only while `is_complete()` is
    True, that is, while the sums include all batches yielded so far.
    """
    clear_torn(states)
    state = TrainingState.read_newest(states)
    if state is not None:
        for name, total in sums.items():
            total.copy_(state.tensors[name])
    session.clock.start()
    for step in range(state.step if state is not None else 0, session.steps):
        yield session.plan_batch(step)
        session.progress(step + 1, session.steps, "batches", note)
        if is_complete() and session.clock.is_due():
            with session.clock.saving():
                TrainingState(step + 1, sums, {}).write(states)


def plan_passes(
    encoder: Encoder,
    tensor_names: Mapping[str, str],
    vocabulary: Collection[str],
    text: TokenisedText,
    memory: int | None,
) -> list[list[SummedInput]]:
    """Return the layers to sum in each pass over the data, so that the sums of a pass fit into memory.

    `tensor_names` maps each parameter to its canonical name; tensors in `vocabulary` have a row for each
    token. One text is encoded to see which layers get the same inputs (query, key and value; gate and up):
    their Gram matrix is summed once.

    Raises:
        CheckpointError: if no layer is called in a forward pass.
    """
    passes: list[list[SummedInput]] = []
    free_bytes = 0
    for layer in _find_layers(encoder, tensor_names, vocabulary, text):
        if not passes or layer.nbytes > free_bytes:
            passes.append([])
            free_bytes = memory or DEFAULT_MEMORY_BYTES
        passes[-1].append(layer)
        free_bytes -= layer.nbytes
    if not passes:
        raise CheckpointError(
            f"{type(encoder).__name__}: no linear layer of it is called, so there is nothing to measure"
        )
    return passes


def _find_layers(
    encoder: Encoder,
    tensor_names: Mapping[str, str],
    vocabulary: Collection[str],
    text: TokenisedText,
) -> list[SummedInput]:
    modules = dict(encoder.module.named_modules())
    inputs_by_module: dict[str, list[Tensor]] = {}

    def keep_input(name: str, inputs: Tensor) -> None:
        inputs_by_module.setdefault(name, []).append(inputs)

    hooks = []
    for name, module in modules.items():
        weight = tensor_names.get(f"{name}.weight" if name else "weight")
        is_linear = isinstance(module, nn.Linear)
        if weight and (is_linear or (isinstance(module, nn.Embedding) and weight in vocabulary)):
            hooks.append(_hook_inputs(module, partial(keep_input, name)))
    try:
        with torch.no_grad():
            forward(encoder, [text])
    finally:
        for hook in hooks:
            hook.remove()
    # All inputs are still in memory, so one address and version means the same numbers.
    names_by_storage: dict[Any, list[str]] = {}
    for name, inputs in inputs_by_module.items():
        storage_key = tuple((x.data_ptr(), x._version, x.shape, x.stride()) for x in inputs)
        names_by_storage.setdefault(storage_key, []).append(name)
    return [
        _build_layer(modules[first], (first, *others))
        for first, *others in names_by_storage.values()
    ]


def _build_layer(module: nn.Module, names: tuple[str, ...]) -> SummedInput:
    if isinstance(module, nn.Embedding):
        return SummedInput(names[0], module.num_embeddings, names, tokens=True)
    assert isinstance(module, nn.Linear)
    return SummedInput(names[0], module.in_features, names)


class GramCounter:
    """Context manager that adds up layers' Gram matrices in float64 during forward passes."""

    def __init__(self, encoder: Encoder, layers: Sequence[SummedInput], token_budget: int) -> None:
        device = next(encoder.module.parameters()).device
        self._encoder, self._layers, self._budget = encoder, layers, token_budget
        self.sums = {
            layer.module: torch.zeros(layer.shape, dtype=torch.float64, device=device)
            for layer in layers
        }
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> GramCounter:
        modules = dict(self._encoder.module.named_modules())
        for layer in self._layers:
            receive = partial(self._add_inputs, layer)
            self._hooks.append(_hook_inputs(modules[layer.module], receive))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _add_inputs(self, layer: SummedInput, inputs: Tensor) -> None:
        total = self.sums[layer.module]
        if layer.tokens:
            total += torch.bincount(inputs.reshape(-1), minlength=layer.width)
            return
        rows = inputs.reshape(-1, layer.width).float()
        total += rows.mT @ rows

    def add(self, texts: Sequence[TokenisedText]) -> None:
        """Encode texts in batches of equal length, as padding would be counted, and add their inputs."""
        order = sorted(range(len(texts)), key=lambda i: (-len(texts[i].ids), i))
        start = 0
        while start < len(order):
            length = len(texts[order[start]].ids)
            limit = start + max(1, self._budget // max(1, length))
            end = start
            while end < min(limit, len(order)) and len(texts[order[end]].ids) == length:
                end += 1
            with torch.no_grad():
                forward(self._encoder, [texts[i] for i in order[start:end]])
            start = end

    def collect_entries(self, tensor_names: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
        """Yield (canonical tensor name, float32 sum) of every layer."""
        for layer in self._layers:
            total = self.sums[layer.module].float().cpu()
            for name in layer.shared:
                yield tensor_names[f"{name}.weight"], total


def _hook_inputs(module: nn.Module, receive: Callable[[Tensor], object]) -> RemovableHandle:
    """Call `receive` with the input of every later call of a module, until the handle is removed."""

    def record_inputs(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        receive((args[0] if args else kwargs["input"]).detach())

    return module.register_forward_pre_hook(record_inputs, with_kwargs=True)


def measure_fisher(session: Session, stored: StoredTensors, work: Path) -> Mapping[str, Tensor]:
    """Return the Fisher information of each tensor, float32; training states are saved in `work`.

    It is the mean over batches of the squared gradient of the batch's loss; a tensor without a gradient has
    the single number 0.

    Raises:
        EmbergeError: if a batch's loss is not finite.
    """
    names = stored.map_names(session.encoder)
    parameters = dict(session.encoder.module.named_parameters())
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for batch in _read_batches(session, sums, work / "states"):
        if not bool(torch.isfinite(session.backward(batch).loss)):
            raise EmbergeError(f"the loss of batch {batch.step} is not finite; is the model sound?")
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                sums[name].addcmul_(parameter.grad, parameter.grad)
        session.encoder.module.zero_grad(set_to_none=True)
    means = {names[n]: total / session.plan.steps for n, total in sums.items()}
    unused = {name: torch.zeros(()) for name in stored.shapes if name not in means}
    return {**means, **unused}
