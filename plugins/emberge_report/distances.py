"""Distances of a model from its base, layer by layer, read in pieces and never whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import CheckpointError

if TYPE_CHECKING:
    from emberge import Model
    from emberge.engine import TensorReader, TensorSpec
    from torch import Tensor

__all__ = ["EMBEDDINGS", "FINAL", "Distances", "layer_distances", "layer_order"]

EMBEDDINGS, FINAL = "embeddings", "final"
# Elements compared at once: 16 MB of each model.
PIECE = 4_194_304


@dataclass(frozen=True, slots=True)
class Distances:
    """‖W − W₀‖ / ‖W₀‖ (Frobenius) by layer and over all; `left_out` names tensors without their like.

    `base` is the name of the model measured from.
    """

    base: str
    layers: Mapping[str, float]
    total: float
    left_out: tuple[str, ...] = ()


def layer_order(layers: Iterable[str]) -> list[str]:
    """Return a sort key: embeddings first, layers by number, other towers' likewise, then the last norm."""
    return sorted(dict.fromkeys(layers), key=_place)


def _place(layer: str) -> tuple[int, str, int]:
    if layer == EMBEDDINGS:
        return 0, "", 0
    tower, _, number = layer.rpartition(".")
    if number.isdecimal():
        return 1 if tower == "layers" else 2, tower, int(number)
    return (3 if layer == FINAL else 4), layer, 0


def layer_distances(base: Model, model: Model) -> Distances:
    """Return distances of a model's floating-point weights from its base's, in float64 sums.

    Tensors are matched by their names without a wrapper's prefix, and only where shapes agree.

    Raises:
        CheckpointError: when a folder has no safetensors, or the models have no tensor in common.
    """
    from emberge.engine import Checkpoint, layer_of

    pairs, left_out = _pairs(base, model)
    if not pairs:
        raise CheckpointError(f"'{model.name}' and '{base.name}' have no tensor in common")
    sums: dict[str, list[float]] = {}
    with Checkpoint(base.folder).reader() as old, Checkpoint(model.folder).reader() as new:
        for name, spec, other in pairs:
            moved, size = _squares(old, new, spec, other)
            layer = sums.setdefault(layer_of(name), [0.0, 0.0])
            layer[0] += moved
            layer[1] += size
    total = [sum(column) for column in zip(*sums.values(), strict=True)]
    return Distances(
        base=base.name,
        layers={layer: _ratio(*sums[layer]) for layer in layer_order(sums)},
        total=_ratio(*total),
        left_out=tuple(left_out),
    )


def _specs(model: Model) -> Mapping[str, TensorSpec]:
    """Return a model's tensors by canonical name, those that an adapter changes with its changes."""
    from emberge.engine import Checkpoint, adapted_names, canonical_names

    checkpoint = Checkpoint(model.folder)
    names = adapted_names(canonical_names(checkpoint), checkpoint, model.adapter)
    assert names is not None  # as all of it was asked for
    return names.specs


def _pairs(base: Model, model: Model) -> tuple[list[tuple[str, TensorSpec, TensorSpec]], list[str]]:
    """Return (canonical name, the base's tensor, the model's), and the names that only one has."""
    known = _specs(base)
    pairs, left_out = [], []
    for name, spec in _specs(model).items():
        if not spec.mergeable:
            continue
        like = known.get(name)
        if like is None or not like.mergeable or like.shape != spec.shape:
            left_out.append(name)
        else:
            pairs.append((name, like, spec))
    return pairs, left_out


def _squares(
    old: TensorReader, new: TensorReader, spec: TensorSpec, other: TensorSpec
) -> tuple[float, float]:
    """Return ‖W − W₀‖² and ‖W₀‖² of one tensor."""
    import torch

    moved = size = 0.0
    for start, length in _pieces(spec.elements):
        before, after = torch.empty(length), torch.empty(length)
        old.read(spec, start, before)
        new.read(other, start, after)
        size += _square(before)
        moved += _square(after.sub_(before))
    return moved, size


def _square(values: Tensor) -> float:
    import torch

    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2


def _pieces(elements: int) -> Iterator[tuple[int, int]]:
    for start in range(0, elements, PIECE):
        yield start, min(PIECE, elements - start)


def _ratio(moved: float, size: float) -> float:
    if size == 0:
        return 0.0 if moved == 0 else math.inf
    return math.sqrt(moved / size)
