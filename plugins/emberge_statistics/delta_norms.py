"""Norms of the changes from a base to a model, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from emberge import CheckpointError, Model

if TYPE_CHECKING:
    from emberge.engine import TensorReader, TensorSpec

__all__ = ["delta_norms"]

# Elements compared at once: 4 MB of each model.
PIECE = 1 << 20


def delta_norms(base: Model, model: Model) -> dict[str, float]:
    """Return ‖theta − theta₀‖ by layer, over the tensors of floating-point numbers.

    Raises:
        CheckpointError: when a tensor is missing in one of them or has another shape, or has NaN.
    """
    from emberge.engine import TensorReader, layer_of

    squares: dict[str, float] = {}
    with TensorReader() as reader:
        for name, old, new in _pairs(base, model):
            layer = layer_of(name)
            moved = _moved(reader, old, new)
            if not math.isfinite(moved):
                raise CheckpointError(
                    f"{name}: '{model.name}' or '{base.name}' has NaN or infinity"
                )
            squares[layer] = squares.get(layer, 0.0) + moved
    return {layer: math.sqrt(square) for layer, square in squares.items()}


def _specs(model: Model) -> Mapping[str, TensorSpec]:
    """Return a model's tensors, those that an adapter changes with its changes."""
    from emberge.engine import Checkpoint, adapted_names, canonical_names

    checkpoint = Checkpoint(model.folder)
    names = adapted_names(canonical_names(checkpoint), checkpoint, model.adapter)
    assert names is not None  # as all of it was asked for
    return names.specs


def _pairs(base: Model, model: Model) -> Iterator[tuple[str, TensorSpec, TensorSpec]]:
    known, other = _specs(base), _specs(model)
    for name in sorted(known.keys() | other.keys()):
        old, new = known.get(name), other.get(name)
        if old is None or new is None:
            raise CheckpointError(f"{name}: '{(base if old is None else model).name}' lacks it")
        if old.shape != new.shape:
            raise CheckpointError(
                f"{name}: '{model.name}' has shape {list(new.shape)}, '{base.name}' has "
                f"{list(old.shape)}; "
                "measure models of one architecture"
            )
        if old.mergeable and new.mergeable:
            yield name, old, new


def _moved(reader: TensorReader, old: TensorSpec, new: TensorSpec) -> float:
    """Return the squared norm of one tensor's change, summed piece by piece."""
    import torch

    total = 0.0
    before, after = torch.empty(PIECE), torch.empty(PIECE)
    for start in range(0, old.elements, PIECE):
        size = min(PIECE, old.elements - start)
        reader.read(old, start, before[:size])
        reader.read(new, start, after[:size])
        change = after[:size].sub_(before[:size])
        total += float(torch.linalg.vector_norm(change, dtype=torch.float64)) ** 2
    return total
