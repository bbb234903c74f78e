"""Warnings of a plan that has no problems: weights, equal models, tokenizers, licences; loads no torch."""

from __future__ import annotations

import math
import operator
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from emberge.contracts import MergeTransform, Stage
from emberge.merging.comparison import LOW_COSINE
from emberge.merging.merge_plan import MergePlan, weights_of
from emberge.merging.request import MergeRequest
from emberge.model_folder import Checkpoint, ModelPair, licence_limits, licence_of
from emberge.tensor_files import TensorSpec
from emberge.tensor_names import layer_number
from emberge.wording import count_noun, join_some

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
    """Warnings of a plan, whether models differ in weights only, and each parent's licence."""

    warnings: tuple[str, ...]
    only_weights_differ: bool
    licences: Mapping[str, str | None]
    change_cosines: tuple[float, ...] = ()
    """Cosines of models' changes from the base, pair by pair."""


def plan_warnings(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> PlanWarnings:
    """Return the warnings of a plan that has no problems; `checkpoints` are the folders that exist."""
    licences = _read_licences(plan.request, checkpoints)
    with _OpenFiles() as files:
        warnings = (
            *_warn_of_weights(plan),
            *_warn_of_twins(plan, files),
            *_warn_of_far_layers(plan, files),
            *_warn_of_tokens(plan, checkpoints),
            *_warn_of_licences(licences),
        )
        changes = _estimate_change_cosines(plan, files)
    return PlanWarnings(warnings, _have_same_files(plan, checkpoints), licences, changes)


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


def _compare_tokens(first: Checkpoint, second: Checkpoint) -> Iterable[str]:
    if ModelPair(first, second).same_tokenizer:
        return ()
    from emberge.merging.tokens.tokenizer import token_notes

    return token_notes(first, second)


def _have_same_files(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> bool:
    template = plan.template
    if any(model.part == "text" for model in plan.request.inputs):
        return False  # what else is in their folders was not compared
    return template is not None and not any(
        True
        for pair in (
            ModelPair(template, other) for _, other in _list_other_models(plan, checkpoints)
        )
        for _ in (
            *pair.choices(),
            *pair.smaller_differences(),
            *_compare_tokens(template, pair.second),
        )
    )


def _read_licences(
    request: MergeRequest, checkpoints: Mapping[str, Checkpoint]
) -> dict[str, str | None]:
    models = [*request.inputs, *([request.base] if request.base is not None else [])]
    licences: dict[str, str | None] = {}
    for model in models:
        if model.name in checkpoints:
            folder = checkpoints[model.name].folder
            stated_licences = [
                licence_of(place) for place in (folder, model.adapter) if place is not None
            ]
            licences[model.name] = (
                ", ".join(dict.fromkeys(one for one in stated_licences if one)) or None
            )
    return licences


def _warn_of_licences(licences: Mapping[str, str | None]) -> Iterator[str]:
    """Yield warnings about the licences of parents, given by the parents' names."""
    stated_licences = {name: licence for name, licence in licences.items() if licence}
    for name, licence in stated_licences.items():
        limits = licence_limits(licence)
        if "nd" in limits:
            yield (
                f"'{name}' is under {licence}, which forbids sharing what is derived from it, such as a "
                "merge; ask its authors, or leave it out"
            )
        if "nc" in limits:
            yield f"'{name}' is under {licence}: what is merged from it may not be used commercially either"
        if "own" in limits:
            yield f"'{name}' is under terms of its own ('{licence}'); read them before you share a merge"
    if len({licence.lower() for licence in stated_licences.values()}) > 1:
        yield (
            f"the parents' licences differ ({licence_line(stated_licences)}); what is merged has "
            "to keep to all of them"
        )


def licence_line(licences: Mapping[str, str | None]) -> str:
    """Return one line with the names under each licence: `apache-2.0: a, b; not stated: c`."""
    by_licence: dict[str, list[str]] = {}
    for name, licence in licences.items():
        by_licence.setdefault(licence or "not stated", []).append(name)
    ordered_licences = sorted(by_licence, key=lambda licence: licence == "not stated")
    return "; ".join(
        f"{licence}: {join_some(by_licence[licence], 4)}" for licence in ordered_licences
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

    def read_numbers(self, spec: TensorSpec, start: int, count: int) -> array[float]:
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


def _warn_of_far_layers(plan: MergePlan, files: _OpenFiles) -> Iterator[str]:
    """Yield a warning for each model that has layers whose cosine with the first model's is below LOW_COSINE.

    Only matrices in the text trunk's layers are compared, and only if files store them unchanged. Merges of
    slices are not checked, as slices may reorder layers.
    """
    if plan.request.part is not None:
        return
    names = [model.name for model in plan.request.inputs]
    for position in range(1, len(names)):
        cosines = estimate_cosines(plan, position, files)
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


def estimate_cosines(plan: MergePlan, position: int, files: _OpenFiles) -> Mapping[int, float]:
    """Return, by layer, the estimated cosine of the first model's weights and those of model `position`."""
    sums: dict[int, list[float]] = {}
    for tensor in plan.tensors:
        layer = layer_number(tensor.name)
        if layer is None or tensor.action != "merge" or len(tensor.out.shape) < 2:
            continue
        first, second = tensor.sources[0], tensor.sources[position]
        if not (_is_plain(first) and _is_plain(second)):
            continue
        assert first is not None
        assert second is not None
        for start, count in _sample_runs(min(first.elements, second.elements)):
            a, b = files.read_numbers(first, start, count), files.read_numbers(second, start, count)
            layer_sums = sums.setdefault(layer, [0.0, 0.0, 0.0])
            for i, pair in enumerate(((a, b), (a, a), (b, b))):
                layer_sums[i] += sum(map(operator.mul, *pair))
    return {la: ab / math.sqrt(aa * bb) for la, (ab, aa, bb) in sums.items() if aa > 0 and bb > 0}


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


def _decode_bfloat16(data: bytes) -> array[float]:
    """Return bfloat16 numbers, which are the upper halves of float32's."""
    float32_bytes = bytearray(2 * len(data))
    float32_bytes[2::4], float32_bytes[3::4] = data[0::2], data[1::2]
    return array("f", bytes(float32_bytes))


_DECODERS: Mapping[str, Callable[[bytes], array[float]]] = {
    "bfloat16": _decode_bfloat16,
    "float16": lambda data: array("f", struct.unpack(f"<{len(data) // 2}e", data)),
    "float32": lambda data: array("f", data),
    "float64": lambda data: array("d", data),
}


def _estimate_change_cosines(plan: MergePlan, files: _OpenFiles) -> tuple[float, ...]:
    """Return the estimated cosine of each pair of models' changes; empty without a base, or in a slice.

    Only matrices in the text trunk's layers are compared, and only if files store them unchanged. Pairs with
    a model that did not change are omitted.
    """
    if plan.request.base is None or plan.request.part is not None:
        return ()
    count = min(_MOST_COMPARED_MODELS, len(plan.request.inputs))
    squares = [0.0] * count
    products = dict.fromkeys(combinations(range(count), 2), 0.0)
    for tensor in plan.tensors if count > 1 else ():
        specs = [tensor.base, *tensor.sources[:count]]
        if layer_number(tensor.name) is None or len(tensor.out.shape) < 2:
            continue
        if tensor.action != "merge" or not all(map(_is_plain, specs)):
            continue
        present_specs = [spec for spec in specs if spec is not None]
        for start, size in _sample_runs(min(spec.elements for spec in present_specs)):
            base, *models = (files.read_numbers(spec, start, size) for spec in present_specs)
            changes = [list(map(operator.sub, one, base)) for one in models]
            for i, change in enumerate(changes):
                squares[i] += sum(map(operator.mul, change, change))
            for i, j in products:
                products[i, j] += sum(map(operator.mul, changes[i], changes[j]))
    return tuple(
        product / math.sqrt(squares[i] * squares[j])
        for (i, j), product in products.items()
        if squares[i] > 0 and squares[j] > 0
    )
