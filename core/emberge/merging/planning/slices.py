"""Slices: a model stacked from layers of others, each slice being an ordinary merge of its layers.

A slice is planned as a separate merge, in which each model has only the slice's layers, with their numbers in
the result. Tensors before the layers (embeddings) belong to the first slice, and tensors after the layers
(the last norm, heads, modules) to the last slice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from emberge.errors import EmbergeError, Problem
from emberge.merging.merge_plan import MergePlan, TensorPlan
from emberge.merging.request import LayerRange, MergeRequest
from emberge.model_folder import (
    Checkpoint,
    LayerConfig,
    read_json,
    trunk_config,
    with_trunk_config,
)
from emberge.tensor_names import TIED, Names, layer_number, shift_layer


def _renumber_names(part: LayerRange, names: Names, first: int) -> Names:
    """Return a model's tensors in a slice, renamed as in the result."""
    by = part.start - first
    specs = {
        shift_layer(name, by) if layer_number(name) is not None else name: spec
        for name, spec in names.specs.items()
        if part.contains(name, first)
    }
    return replace(names, specs=specs)


def _renumber_pattern(part: LayerRange, names: Names, first: int, prefix: str) -> Names:
    """Return the result's tensors in a slice: the model's, renamed, with the template's prefix."""
    by = part.start - first
    specs = {}
    for name, spec in names.specs.items():
        if part.contains(name, first):
            inside = spec.name.startswith(names.prefix)
            stored_name = (
                prefix + spec.name.removeprefix(names.prefix) if inside else names.out_name(spec)
            )
            layered = layer_number(name) is not None
            new, stored_name = (shift_layer(n, by) if layered else n for n in (name, stored_name))
            specs[new] = spec.renamed(stored_name)
    return replace(names, specs=specs, prefix=prefix, outer="")


def slice_tensors(
    request: MergeRequest, part: LayerRange, names: Mapping[str, Names], pattern: Names
) -> tuple[Mapping[str, Names], Names]:
    """Return all models' tensors and the result's, restricted to a slice and with its layers renumbered."""
    firsts = {m.name: m.first_layer or 0 for m in request.all_inputs}
    result = _renumber_pattern(part, pattern, request.inputs[0].first_layer or 0, part.prefix)
    seen = {}
    for name, inner in names.items():
        # Where the embedding is in another slice, a tied model's copy of it must be named here.
        copies = {
            n: inner.stands_for(n) for n in TIED if n in result.specs and n not in inner.specs
        }
        tied = {n: spec for n, spec in copies.items() if spec is not None}
        view = _renumber_names(part, inner, firsts[name])
        seen[name] = replace(view, specs={**view.specs, **tied})
    return seen, result


def slice_depths(part: LayerRange, layers: Mapping[str, str]) -> dict[str, float]:
    """Return each tensor's relative depth in its slice: 0 to 1, 1 in a single layer, 0 outside layers."""
    depths = {}
    for name in layers:
        number = layer_number(name)
        if number is None:
            depths[name] = 0.0
        else:
            depths[name] = (number - part.start) / (part.count - 1) if part.count > 1 else 1.0
    return depths


# ── the plan of all slices ──────────────────────────────────────────────────────────────────────


def requests_of(request: MergeRequest) -> Iterator[MergeRequest]:
    """Yield a request for each slice."""
    start, prefix = 0, _read_prefix(request)
    for index, layer_slice in enumerate(request.slices):
        ends = (index == 0, index == len(request.slices) - 1)
        yield replace(
            request,
            inputs=layer_slice.inputs,
            base=layer_slice.base,
            strategy=layer_slice.strategy or request.strategy,
            slices=(),
            part=LayerRange(start, layer_slice.count, *ends, prefix),
        )
        start += layer_slice.count


def _read_prefix(request: MergeRequest) -> str:
    """Return the name prefix of the template, which is the first model that exists."""
    folders = (m.folder for one in request.slices for m in one.inputs)
    folder = request.template or next((f for f in folders if f is not None), None)
    try:
        checkpoint = Checkpoint(folder or Path())
        names = checkpoint.names if checkpoint.has_weights else None
    except EmbergeError:
        return ""  # the plan has the problem
    return names.prefix.removeprefix(names.outer) if names is not None else ""


def join_plans(request: MergeRequest, plans: Sequence[MergePlan]) -> MergePlan:
    """Join the plans of the slices into one, without weights, and with the problems between them."""
    problems = [p for plan in plans for p in plan.problems]
    problems += [*_check_lengths(request), *_check_shapes(plans)]
    inputs = tuple(m for one in request.slices for m in one.inputs)
    bases = [one.base for one in request.slices if one.base is not None]
    return replace(
        plans[0],
        request=replace(request, inputs=inputs, base=bases[0] if bases else None),
        tensors=tuple(_spread_sources(plans, len(inputs))),
        dropped=tuple(dict.fromkeys(n for plan in plans for n in plan.dropped)),
        renamed={},
        layers={n: layer for plan in plans for n, layer in plan.layers.items()},
        depths={n: depth for plan in plans for n, depth in plan.depths.items()},
        problems=tuple(dict.fromkeys(problems)),
        warnings=tuple(dict.fromkeys(w for plan in plans for w in plan.warnings)),
        future_models=frozenset(n for plan in plans for n in plan.future_models),
        slice_plans=tuple(plans),
    )


def _spread_sources(plans: Sequence[MergePlan], inputs: int) -> Iterator[TensorPlan]:
    """Yield each slice's tensor plans, with a source (or None) for every input of all slices."""
    inputs_before = 0
    for plan in plans:
        count = len(plan.request.inputs)
        padding = (None,) * inputs_before, (None,) * (inputs - inputs_before - count)
        for tensor in plan.tensors:
            sources = (*padding[0], *tensor.sources, *padding[1]) if tensor.sources else ()
            yield replace(tensor, sources=sources)
        inputs_before += count


def _check_lengths(request: MergeRequest) -> Iterator[Problem]:
    """Yield a problem for each slice with layers that a model lacks."""
    for layer_slice in request.slices:
        for model in (
            *layer_slice.inputs,
            *([layer_slice.base] if layer_slice.base is not None else []),
        ):
            if model.folder is None or model.first_layer is None:
                continue
            count = LayerConfig(Checkpoint(model.folder).config).count
            end = model.first_layer + layer_slice.count
            if count is not None and end > count:
                yield Problem(
                    f"'{model.name}' has layers 0 to {count - 1}, and the slice takes "
                    f"[{model.first_layer}, {end}]"
                )


def _check_shapes(plans: Sequence[MergePlan]) -> Iterator[Problem]:
    """Yield a problem for each slice whose layers differ in shape from the first slice's."""
    shapes: dict[str, tuple[int, ...]] = {}
    for plan in plans:
        for tensor in plan.tensors:
            number = layer_number(tensor.name)
            if number is None:
                continue
            relative_name = shift_layer(tensor.name, -number)
            if shapes.setdefault(relative_name, tensor.out.shape) != tensor.out.shape:
                yield Problem(
                    f"this layer has shape {list(tensor.out.shape)}, the first slice's "
                    f"{list(shapes[relative_name])}; stack models of one architecture",
                    tensor.name,
                )
                return


# ── the config of the result ────────────────────────────────────────────────────────────────────


def write_layers(request: MergeRequest, trunk: Path) -> None:
    """Write the result's number of layers, and the kind of each, into the config.json in `trunk`."""
    path = trunk / "config.json"
    if not path.is_file():
        return
    config: dict[str, Any] = read_json(path)
    old = trunk_config(config)
    layers = sum(one.count for one in request.slices)
    changes: dict[str, Any] = {LayerConfig(config).count_key: layers}
    for name in LayerConfig.KINDS:
        kinds = _list_layer_kinds(request, name)
        if isinstance(old.get(name), list) and kinds is not None:
            changes[name] = kinds
    config = with_trunk_config(config, changes)
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _list_layer_kinds(request: MergeRequest, name: str) -> list[Any] | None:
    """Return each layer's kind for the result's config, from the first model of the layer's slice."""
    kinds: list[Any] = []
    for layer_slice in request.slices:
        model = layer_slice.inputs[0]
        listed = trunk_config(Checkpoint(model.folder or Path()).config).get(name)
        first = model.first_layer or 0
        if not isinstance(listed, list) or len(listed) < first + layer_slice.count:
            return None
        kinds += listed[first : first + layer_slice.count]
    return kinds
