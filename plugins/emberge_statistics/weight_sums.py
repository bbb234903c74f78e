"""Sums over two models' weights, tensors matched by name and read once; norms of changes; the verb `diff`."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from emberge import CheckpointError, Machine, Model, ModelRef, Plugins
from emberge.contracts import as_row_shape
from emberge.devices import find_machine
from emberge.merging import Tokenizer, open_model
from emberge.model_folder import Checkpoint, ModelPair
from emberge.recipes import complete_reference, locate_model
from emberge.tensor_files import TensorReader, TensorSpec
from emberge.tensor_names import (
    EMBEDDING_LAYER,
    LAYER_PATTERN,
    find_layer,
    is_buffer,
    is_vocabulary,
)
from emberge.wording import count_noun, format_counts_by_first_word, join_some
from torch import Tensor

from emberge_statistics.weight_comparison import LayerPart, PairSums, WeightComparison

# Elements of each model that a thread has in memory at once.
_READ_ELEMENTS = 1 << 20
# Elements summed in float32, before sums are added in float64: squares of 2^18 were wrong by up to 2e-6.
_FLOAT32_SUM_ELEMENTS = 1 << 16
# Names of modules that mix tokens; hybrid models have convolutions instead of attention.
_ATTENTION = re.compile(r"attn|attention|\bconv\.", re.IGNORECASE)


def compare_weights(
    first: Model, second: Model, base: Model | None = None, *, machine: Machine | None = None
) -> WeightComparison:
    """Compare the floating-point weights of two models, and their changes from a `base` if one is given.

    Tensors are matched by their names without a wrapper's prefix, and rows of vocabularies by token.
    Numbers do not depend on the number of threads.

    Raises:
        CheckpointError: if a folder has no safetensors, the models have no tensor in common, or a tensor has
            NaN or infinite values.
    """
    matched = _match_tensors([first, second, *([base] if base is not None else [])])
    if not matched.pairs:
        raise CheckpointError(
            f"'{second.name}' and '{first.name}' have no tensor in common"
            + "".join(f"; {note}" for note in matched.notes)
        )
    weights: dict[tuple[str, LayerPart], PairSums] = {}
    changes: dict[tuple[str, LayerPart], PairSums] = {}
    workers = machine.workers if machine is not None else 1
    with TensorReader() as reader, ThreadPoolExecutor(workers, "compare") as threads:
        sums = threads.map(lambda name: _sum_pair(matched, name, reader), matched.pairs)
        for (name, specs), (of_weights, of_changes) in zip(
            matched.pairs.items(), sums, strict=True
        ):
            key = find_layer(name), _find_layer_part(name, specs[0].shape)
            weights[key] = weights.get(key, PairSums()) + of_weights
            if of_changes is not None:
                changes[key] = changes.get(key, PairSums()) + of_changes
    return WeightComparison(
        first=first.name,
        second=second.name,
        base=base.name if base is not None else None,
        weights=weights,
        changes=changes,
        left_out=tuple(matched.left_out),
        notes=tuple(matched.notes),
    )


@dataclass
class _MatchedPairs:
    """Tensors of the models by canonical name, with names of omitted tensors and the reasons.

    `models` are names of models; a tensor that the base lacks has two specs. `shared` marks the rows of
    vocabularies whose token is the same in all models; if it is empty, all rows are compared.
    """

    models: Sequence[str]
    pairs: dict[str, tuple[TensorSpec, ...]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shared: list[bool] = field(default_factory=list)


def _sum_pair(
    matched: _MatchedPairs, name: str, reader: TensorReader
) -> tuple[PairSums, PairSums | None]:
    """Return the sums over one tensor's weights and over its changes, None without a base.

    Raises:
        CheckpointError: if a model has NaN or infinite values.
    """
    specs = matched.pairs[name]
    count, width = min(as_row_shape(spec.shape) for spec in specs)
    shared = torch.tensor(matched.shared) if matched.shared and is_vocabulary(name) else None
    if shared is not None and len(specs[0].shape) == 1:
        count, width = width, 1  # a bias has a number for each token
    rows_at_once = max(1, _READ_ELEMENTS // max(1, width))
    weights, changes = PairSums(), PairSums()
    for start in range(0, count, rows_at_once):
        rows = min(rows_at_once, count - start)
        values = torch.empty(len(specs), rows, width)
        for spec, into in zip(specs, values, strict=True):
            reader.read(spec, start * width, into.view(-1))
        if shared is not None:
            values = values[:, shared[start : start + rows]]
        first, second, *base = values.flatten(1)
        weights += _sum_elements(first, second)
        if base:
            changes += _sum_elements(first - base[0], second - base[0])
    if not math.isfinite(weights.change + changes.change):
        raise CheckpointError(_describe_bad_values(matched, name, reader))
    return weights, changes if len(specs) > 2 else None


def _describe_bad_values(matched: _MatchedPairs, name: str, reader: TensorReader) -> str:
    for model, spec in zip(matched.models, matched.pairs[name], strict=False):
        values = torch.empty(spec.elements)
        reader.read(spec, 0, values)
        if not values.isfinite().all():
            return f"{name}: '{model}' has NaN or infinite values; make it again"
    return f"{name}: its values are too large to be compared; make the models again"


def _sum_elements(first: Tensor, second: Tensor) -> PairSums:
    a, b, change = (_sum_squares(one) for one in (first, second, second - first))
    return PairSums(first.numel(), a, b, change, int(torch.count_nonzero(first * second < 0)))


def _sum_squares(values: Tensor) -> float:
    parts = torch.split(values, _FLOAT32_SUM_ELEMENTS)
    return math.fsum(float(torch.dot(part, part)) for part in parts)


def _match_tensors(models: Sequence[Model]) -> _MatchedPairs:
    checkpoints = [open_model(model.folder, model.adapter) for model in models]
    names = [checkpoint.tensor_names for checkpoint in checkpoints]
    matched = _MatchedPairs([model.name for model in models])
    unmatched: dict[str, list[str]] = {"first": [], "second": [], "base": []}
    other_shapes: list[str] = []
    for name in dict.fromkeys(name for own in names[:2] for name in own.specs):
        specs = [own.specs.get(name) for own in names]
        if is_buffer(name) or not all(spec.mergeable for spec in specs if spec is not None):
            continue
        a, b, *base = specs
        if a is None or b is None:
            lacking = names[0 if a is None else 1]
            if not lacking.is_redundant(name):
                unmatched["second" if a is None else "first"].append(name)
        elif not _have_same_shape(name, a, b):
            other_shapes.append(f"{name} {list(a.shape)} and {list(b.shape)}")
            matched.left_out.append(name)
        elif base and (base[0] is None or not _have_same_shape(name, a, base[0])):
            unmatched["base"].append(name)
            matched.pairs[name] = (a, b)
        else:
            matched.pairs[name] = (a, b, *(spec for spec in base if spec is not None))
    matched.left_out += [*unmatched["first"], *unmatched["second"]]
    matched.notes += _describe_unmatched(matched.models, unmatched)
    if other_shapes:
        have = "has" if len(other_shapes) == 1 else "have"
        count = count_noun(len(other_shapes), "tensor")
        matched.notes.append(f"{count} {have} other shapes: {join_some(other_shapes, 3)}")
    _match_rows(matched, checkpoints)
    return matched


def _have_same_shape(name: str, first: TensorSpec, second: TensorSpec) -> bool:
    """Return whether shapes are equal, or differ only in the number of rows of a vocabulary."""
    rows = is_vocabulary(name) and bool(first.shape) and bool(second.shape)
    return first.shape[rows:] == second.shape[rows:]


def _describe_unmatched(
    models: Sequence[str], unmatched: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield a note on the tensors that only the `first` or the `second` model has, or the `base` lacks."""
    for model, key in zip(models, ("first", "second"), strict=False):
        if unmatched[key]:
            yield f"only in '{model}': {format_counts_by_first_word(unmatched[key])}"
    if unmatched["base"]:
        names = format_counts_by_first_word(unmatched["base"])
        yield f"the base lacks it, or has it in another shape: {names}"


def _match_rows(matched: _MatchedPairs, checkpoints: Sequence[Checkpoint]) -> None:
    """Mark the rows of vocabularies whose token is the same in all models, and note the other rows."""
    counts = {
        spec.shape[0]
        for name, specs in matched.pairs.items()
        if is_vocabulary(name)
        for spec in specs
    }
    if not counts:
        return
    common_rows = min(counts)
    if len(counts) > 1:
        sizes = " and ".join(map(str, sorted(counts)))
        matched.notes.append(
            f"vocabularies have {sizes} rows; the first {common_rows} are compared"
        )
    if all(ModelPair(checkpoints[0], other).same_tokenizer for other in checkpoints[1:]):
        return
    tokenizers = [Tokenizer.read(one) for one in checkpoints]
    vocabularies = [one.texts for one in tokenizers if one is not None]
    shared = [len({texts.get(i) for texts in vocabularies}) <= 1 for i in range(common_rows)]
    if len(vocabularies) < len(tokenizers):
        matched.notes.append("not every model has a tokenizer, so rows are compared by number")
    if different_count := shared.count(False):
        matched.shared = shared
        matched.notes.append(
            f"{count_noun(different_count, 'row')} of {common_rows} of the vocabularies are for other tokens "
            "and are left out"
        )


def _find_layer_part(name: str, shape: Sequence[int]) -> LayerPart:
    """Return the part of its layer that a tensor belongs to, by canonical name and shape.

    Norms and biases are `vector`. Matrices of a layer are `attention` or `mlp`, and matrices outside the
    layers are `embedding` or `other`.
    """
    if len(shape) < 2:
        return "vector"
    match = LAYER_PATTERN.search(name)
    if match is None:
        return "embedding" if find_layer(name) == EMBEDDING_LAYER else "other"
    return "attention" if _ATTENTION.search(name, match.end()) else "mlp"


def measure_delta_norms(
    base: Model, model: Model, machine: Machine | None = None
) -> dict[str, float]:
    """Return the norm ‖theta − theta₀‖ of each layer, over its floating-point tensors.

    Raises:
        CheckpointError: if one of them lacks a tensor, or a tensor has another shape or NaN.
    """
    comparison = compare_weights(base, model, machine=machine)
    if comparison.notes:
        raise CheckpointError(
            f"'{base.name}' and '{model.name}': {'; '.join(comparison.notes)}; measure models of one "
            "architecture and tokenizer"
        )
    return {layer: sums.norms.change for layer, sums in comparison.sum_layers().items()}


def run_verb(options: argparse.Namespace, plugins: Plugins) -> int:
    """Print the comparison of the models that a command line names: the verb `diff`."""
    references = [options.first, options.second, *([options.base] if options.base else [])]
    models = _make_names_distinct([_find_model(text, plugins) for text in references])
    machine = find_machine(options.devices, options.workers, options.memory)
    comparison = compare_weights(*models, machine=machine)
    notes = [f"note: {remark}" for remark in comparison.list_remarks()]
    print("\n".join([comparison.title, *comparison.table(), *notes]))
    return 0


def _find_model(text: str, plugins: Plugins) -> Model:
    """Find a model by its reference; a bare name that is a folder here means the folder."""
    try:
        located = locate_model(ModelRef(complete_reference(text)), plugins)
    except ConnectionError as error:
        raise CheckpointError(f"'{text}': {error}") from error
    return Model(located.name, located.folder, "", adapter=located.adapter)


def _make_names_distinct(models: list[Model]) -> list[Model]:
    """Return the models; if two names are equal, all models are named by their folders' paths."""
    names = [model.name for model in models]
    if len(set(names)) == len(names):
        return models
    return [
        Model(str(m.adapter or m.folder), m.folder, m.fingerprint, adapter=m.adapter)
        for m in models
    ]
