"""Warnings of a plan that has no problems: weights, equal models, tokenizers; loads no torch."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from emberge.contracts import MergeTransform, Stage
from emberge.merging.comparison import LOW_COSINE
from emberge.merging.merge_plan import MergePlan, weights_of
from emberge.model_folder import Checkpoint, CrossEncoderFacts, ModelPair
from emberge.tensor_files import TensorSpec
from emberge.tensor_names import layer_number
from emberge.wording import count_noun, join_some

_Numbers = tuple[float, ...]
_BASE = "the base"
# Bytes looked at in each of three places of a tensor; what is smaller than that is seen whole. Even where
# most numbers round to the same bfloat16, a few thousand in a row do not.
_COMPARED_BYTES = 4096
# Numbers read in each of as many places of a matrix: with seven matrices a layer, some 7,000 of each layer,
# whose cosine is within 0.02 of that of all of them.
_RUN, _PLACES = 256, 4
# Models whose pairs are compared; further models add little information.
_MOST_COMPARED_MODELS = 8


@dataclass(frozen=True, slots=True)
class PlanWarnings:
    """Warnings of a plan, and whether models differ in weights only."""

    warnings: tuple[str, ...]
    only_weights_differ: bool
    change_cosines: tuple[float, ...] = ()
    """Cosines of models' changes from the base, pair by pair."""


def plan_warnings(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> PlanWarnings:
    """Return the warnings of a plan that has no problems; `checkpoints` are the folders that exist."""
    with _OpenFiles() as files:
        estimate = estimate_cosines(plan, files)
        warnings = (
            *_warn_of_weights(plan),
            *_warn_of_twins(plan, files),
            *_warn_of_far_layers(plan, estimate.layers),
            *_warn_of_tokens(plan, checkpoints),
            *_warn_of_cross_encoders(plan, checkpoints),
        )
    only_weights_differ = _have_same_files(plan, checkpoints)
    return PlanWarnings(warnings, only_weights_differ, estimate.changes)


def _warn_of_weights(plan: MergePlan) -> Iterator[str]:
    if plan.request.weights_by:
        return
    least: dict[int, dict[str, float]] = {}
    for tensor in plan.tensors:
        if tensor.action == "merge":
            lowest = least.setdefault(plan.request.chain_of(tensor.name), {})
            for name, weight in weights_of(plan, tensor).items():
                lowest[name] = min(weight, lowest.get(name, weight))
    for number, weights in least.items():
        for link in _list_stages(plan, plan.request.chains[number]):
            yield from (
                f"'{link.name_in_messages}': {doubt}" for doubt in link.weight_warnings(weights)
            )


def _list_stages(plan: MergePlan, chain: tuple[Stage, ...]) -> Iterator[Stage]:
    """Yield the stages that receive the recipe's models with their given weights."""
    models = [m.name for m in plan.request.inputs]
    groups = [m.group for m in plan.request.inputs]
    for link in chain:
        yield link
        if isinstance(link, MergeTransform) and list(link.remaining(models, groups)) != models:
            return


def _list_other_models(
    plan: MergePlan, checkpoints: Mapping[str, Checkpoint]
) -> Iterator[tuple[str, Checkpoint]]:
    """Yield (name, checkpoint) of each model that exists and is not the template."""
    for model in plan.request.inputs:
        other = checkpoints.get(model.name)
        if other is not None and plan.template is not None and other.folder != plan.template.folder:
            yield model.name, other


def _warn_of_tokens(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> Iterator[str]:
    if plan.template is None:
        return
    tokenizer_folder = plan.request.tokenizer
    source = Checkpoint(tokenizer_folder) if tokenizer_folder is not None else plan.template
    models: dict[str, list[str]] = {}
    for name, other in _list_other_models(plan, checkpoints):
        for note in _compare_tokens(source, other):
            models.setdefault(note, []).append(f"'{name}'")
    for note, names in models.items():
        yield f"'{source.folder.name}' and {join_some(names)}: {note}; the first is kept"


def _warn_of_cross_encoders(
    plan: MergePlan, checkpoints: Mapping[str, Checkpoint]
) -> Iterator[str]:
    if plan.template is None or CrossEncoderFacts.read(plan.template.folder).is_one:
        return
    for name, model in checkpoints.items():
        if (facts := CrossEncoderFacts.read(model.folder)).is_one:
            yield f"'{name}' is {facts.noun}, and becomes a part of an embedder; {facts.remedy}"


def _compare_tokens(first: Checkpoint, second: Checkpoint) -> Iterable[str]:
    if ModelPair(first, second).same_tokenizer:
        return ()
    from emberge.merging.tokens.tokenizer import token_notes

    return token_notes(first, second)


def _have_same_files(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> bool:
    template = plan.template
    if any(model.part == "text" for model in plan.request.inputs):
        return False  # what else is in their folders was not compared
    if template is None or not plan.stated.agree:
        return False
    return not any(
        any(True for _ in _compare_tokens(template, other))
        for _, other in _list_other_models(plan, checkpoints)
    )


def _warn_of_twins(plan: MergePlan, files: _OpenFiles) -> Iterator[str]:
    """Yield a warning for each pair of models with equal weights, and for each model equal to the base.

    Models of different groups may be equal: a checkpoint that is among the best for two tasks is in both
    groups.
    """
    columns = _collect_merged(plan)
    groups = {model.name: model.group for model in plan.request.inputs}
    for first, second in combinations(columns, 2):
        in_two_groups = first != _BASE and groups[first] != groups[second]
        if not in_two_groups and _have_same_bytes(columns[first], columns[second], files):
            yield _describe_twins(first, second)


def _describe_twins(first: str, second: str) -> str:
    """Return a warning of two models, or the base and a model, whose weights are equal."""
    if first == _BASE:
        return (
            f"'{second}' holds the same weights as the base, so that its changes are all zero; take it "
            "out unless you mean that"
        )
    sentence = f"'{first}' and '{second}' hold the same weights"
    return f"{sentence}, which count twice; take one out unless you mean that"


def _collect_merged(plan: MergePlan) -> dict[str, list[TensorSpec]]:
    """Return the merged tensors of the base, and of the models whose files store all of them unchanged."""
    merged = [tensor for tensor in plan.tensors if tensor.action == "merge"]
    specs_by_model = {
        m.name: [t.sources[i] for t in merged] for i, m in enumerate(plan.request.inputs)
    }
    specs_with_base = {_BASE: [tensor.base for tensor in merged], **specs_by_model}
    return {
        name: [spec for spec in specs if spec is not None]
        for name, specs in specs_with_base.items()
        if specs and all(spec is not None and type(spec) is TensorSpec for spec in specs)
    }


def _have_same_bytes(
    first: Sequence[TensorSpec], second: Sequence[TensorSpec], files: _OpenFiles
) -> bool:
    return all(
        a.shape == b.shape and a.dtype == b.dtype and files.hold_same(a, b)
        for a, b in zip(first, second, strict=True)
    )


class _OpenFiles(ExitStack):
    """A cache of open files, from which tensors are sampled."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[Path, int] = {}
        self._stamps: dict[int, tuple[int, ...]] = {}

    def hold_same(self, first: TensorSpec, second: TensorSpec) -> bool:
        """Return whether two tensors of one size have equal bytes at the sampled offsets."""
        handle, other_handle = self._open_file(first.file), self._open_file(second.file)
        if os.path.sameopenfile(handle, other_handle) and first.offset == second.offset:
            return True
        size = min(_COMPARED_BYTES, first.nbytes)
        return all(
            os.pread(handle, size, first.offset + at)
            == os.pread(other_handle, size, second.offset + at)
            for at in dict.fromkeys((0, (first.nbytes - size) // 2, first.nbytes - size))
        )

    def identify(self, spec: TensorSpec) -> tuple[int | str, ...]:
        """Return the tensor's place in its file, and the file's device, inode, size and times."""
        place = (spec.offset, spec.dtype, spec.elements)
        return *place, *self._stamp_of(self._open_file(spec.file))

    def _stamp_of(self, handle: int) -> tuple[int, ...]:
        if handle not in self._stamps:
            status = os.fstat(handle)
            times = (status.st_mtime_ns, status.st_ctime_ns)
            self._stamps[handle] = (status.st_dev, status.st_ino, status.st_size, *times)
        return self._stamps[handle]

    def read_numbers(self, spec: TensorSpec, start: int, count: int) -> _Numbers:
        """Return `count` elements of a tensor, from element `start` on."""
        offset = spec.offset + start * spec.itemsize
        return _DECODERS[spec.dtype](
            os.pread(self._open_file(spec.file), count * spec.itemsize, offset)
        )

    def _open_file(self, path: Path) -> int:
        if path not in self._open:
            self._open[path] = os.open(path, os.O_RDONLY)
            self.callback(os.close, self._open[path])
        return self._open[path]


def _warn_of_far_layers(
    plan: MergePlan, cosines_by_position: Mapping[int, Mapping[int, float]]
) -> Iterator[str]:
    """Yield a warning for each model with layers whose cosine with the first model's is below LOW_COSINE."""
    names = [model.name for model in plan.request.inputs]
    for position, cosines in cosines_by_position.items():
        low_cosines = {layer: cosine for layer, cosine in cosines.items() if cosine < LOW_COSINE}
        if low_cosines:
            lowest_layer = min(low_cosines, key=lambda layer: low_cosines[layer])
            yield (
                f"'{names[0]}' and '{names[position]}': the cosine of their weights is below {LOW_COSINE} in "
                f"{len(low_cosines)} of {count_noun(len(cosines), 'layer')}, about "
                f"{low_cosines[lowest_layer]:.2f} in layer {lowest_layer}; an average of weights this far "
                "apart is rarely of use before it is trained; "
                "`emberge diff` shows all layers"
            )


@dataclass(frozen=True, slots=True)
class EstimatedCosines:
    """Cosines that were estimated from samples of the weights.

    `layers` are those of the first model's weights and another's, by the other's position and by layer;
    `changes` are those of two models' changes from the base, pair by pair. Pairs with a model that did not
    change are omitted.
    """

    layers: Mapping[int, Mapping[int, float]]
    changes: tuple[float, ...] = ()


# The estimates of this process, by a hash of what identifies the numbers: a run plans again what its check
# has planned, and a sweep merges the same models many times.
_ESTIMATES: dict[str, EstimatedCosines] = {}
_MOST_ESTIMATES = 256


def estimate_cosines(plan: MergePlan, files: _OpenFiles) -> EstimatedCosines:
    """Return estimated cosines of the models' weights and changes; numbers are read once a process.

    Only matrices in the text trunk's layers are compared, and only if files store them unchanged. A file that
    was changed is read again.
    """
    if len(plan.request.inputs) < 2:
        return EstimatedCosines({})
    matrices = list(_list_matrices(plan))
    identity = [
        (layer, [files.identify(spec) if spec is not None else None for spec in specs])
        for layer, specs in matrices
    ]
    key = hashlib.sha256(repr((plan.request.base is not None, identity)).encode()).hexdigest()
    if key not in _ESTIMATES:
        estimate = _estimate_cosines(plan, matrices, files)
        while len(_ESTIMATES) >= _MOST_ESTIMATES:
            del _ESTIMATES[next(iter(_ESTIMATES))]
        _ESTIMATES[key] = estimate
    return _ESTIMATES[key]


def _list_matrices(plan: MergePlan) -> Iterator[tuple[int, list[TensorSpec | None]]]:
    """Yield layer, and each model's and the base's spec, of each matrix; None if it cannot be sampled."""
    for tensor in plan.tensors:
        layer = layer_number(tensor.name)
        if layer is not None and tensor.action == "merge" and len(tensor.out.shape) > 1:
            specs = (*tensor.sources, tensor.base)
            yield layer, [spec if _is_plain(spec) else None for spec in specs]


def _estimate_cosines(
    plan: MergePlan, matrices: Iterable[tuple[int, list[TensorSpec | None]]], files: _OpenFiles
) -> EstimatedCosines:
    layers = _LayerCosines()
    compared = min(_MOST_COMPARED_MODELS, len(plan.request.inputs))
    changes = _ChangeCosines(compared if plan.request.base is not None else 0)
    for layer, specs in matrices:
        sampled = {i: spec for i, spec in enumerate(specs) if spec is not None}
        elements = min((spec.elements for spec in sampled.values()), default=0)
        for start, count in _sample_runs(elements):
            *numbers, base = (
                None if spec is None else files.read_numbers(spec, start, count) for spec in specs
            )
            layers.add(layer, numbers)
            changes.add(base, numbers)
    return EstimatedCosines(layers.cosines, changes.cosines)


class _LayerCosines:
    """Sums of squares from which each layer's cosine of the first and another model is computed."""

    def __init__(self) -> None:
        self._sums: dict[int, dict[int, _Triangle]] = {}

    def add(self, layer: int, numbers: Sequence[_Numbers | None]) -> None:
        first, *others = numbers
        if first is None:
            return
        length = math.hypot(*first)
        for position, other in enumerate(others, start=1):
            if other is not None:
                sums = self._sums.setdefault(position, {}).setdefault(layer, _Triangle())
                sums.add(length, math.hypot(*other), math.dist(first, other))

    @property
    def cosines(self) -> dict[int, dict[int, float]]:
        """The cosines by position of the other model, and by layer."""
        return {
            position: {la: c for la, one in sums.items() if (c := one.cosine) is not None}
            for position, sums in self._sums.items()
        }


class _ChangeCosines:
    """Sums of squares from which the cosine of each pair of the first `count` models' changes is computed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pairs = {pair: _Triangle() for pair in combinations(range(count), 2)}

    def add(self, base: _Numbers | None, numbers: Sequence[_Numbers | None]) -> None:
        models = [one for one in numbers[: self._count] if one is not None]
        if base is None or len(models) < self._count:
            return
        lengths = [math.dist(base, one) for one in models]
        for (i, j), sums in self._pairs.items():
            sums.add(lengths[i], lengths[j], math.dist(models[i], models[j]))

    @property
    def cosines(self) -> tuple[float, ...]:
        """The cosines of all pairs of models that changed."""
        return tuple(c for one in self._pairs.values() if (c := one.cosine) is not None)


class _Triangle:
    """Sums of the squared lengths of two vectors and of the distance between their ends, for their cosine.

    Lengths and distances are computed in C and exactly, several times faster than products in Python.
    """

    def __init__(self) -> None:
        self._first = self._second = self._between = 0.0

    def add(self, first: float, second: float, between: float) -> None:
        self._first += first * first
        self._second += second * second
        self._between += between * between

    @property
    def cosine(self) -> float | None:
        """The cosine of the two vectors; None if one of them is zero."""
        if not (self._first > 0 and self._second > 0):
            return None
        product = (self._first + self._second - self._between) / 2
        return product / math.sqrt(self._first * self._second)


def _is_plain(spec: TensorSpec | None) -> bool:
    """Return whether a file stores the tensor unchanged, in a dtype that can be read without torch."""
    return type(spec) is TensorSpec and spec.dtype in _DECODERS


def _sample_runs(elements: int) -> Iterator[tuple[int, int]]:
    """Yield the first element and length of each sampled run of a matrix; all of a small one."""
    if elements <= _RUN * _PLACES:
        yield 0, elements
        return
    for i in range(_PLACES):
        yield (elements - _RUN) * i // (_PLACES - 1), _RUN


def _decode_bfloat16(data: bytes) -> _Numbers:
    """Return bfloat16 numbers, which are the upper halves of float32's."""
    float32_bytes = bytearray(2 * len(data))
    float32_bytes[2::4], float32_bytes[3::4] = data[0::2], data[1::2]
    return struct.unpack(f"<{len(data) // 2}f", float32_bytes)


_DECODERS: Mapping[str, Callable[[bytes], _Numbers]] = {
    "bfloat16": _decode_bfloat16,
    "float16": lambda data: struct.unpack(f"<{len(data) // 2}e", data),
    "float32": lambda data: struct.unpack(f"<{len(data) // 4}f", data),
    "float64": lambda data: struct.unpack(f"<{len(data) // 8}d", data),
}
