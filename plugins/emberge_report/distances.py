"""Distances of a model from its base, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emberge import Machine, Model


# Parents of a merge whose changes are compared pair by pair; more tell nothing new about the others.
_MOST = 5


@dataclass(frozen=True, slots=True)
class Distances:
    """‖W − W₀‖ / ‖W₀‖ (Frobenius) by layer and over all; `left_out` names tensors without their like.

    `base` is the name of the model measured from.
    """

    base: str
    layers: Mapping[str, float]
    total: float
    left_out: tuple[str, ...] = ()


def layer_distances(base: Model, model: Model, machine: Machine | None = None) -> Distances:
    """Return distances of a model's floating-point weights from its base's, norms and biases too.

    Raises:
        CheckpointError: when a folder has no safetensors, or the models have no tensor in common.
    """
    from emberge.merging import compare_weights

    found = compare_weights(base, model, machine=machine)
    return Distances(
        base=base.name,
        layers={layer: sums.distance for layer, sums in found.whole_layers().items()},
        total=found.total().distance,
        left_out=found.left_out,
    )


def kinship(base: Model, parents: Sequence[Model], machine: Machine | None = None) -> str:
    """Return a sentence on how alike the parents of a merge changed from the base; "" where they did not.

    Raises:
        CheckpointError: when a folder has no safetensors, or the models have no tensor in common.
    """
    from emberge.merging import compare_weights, kinship_words

    cosines = []
    for first, second in combinations(parents[:_MOST], 2):
        cosine = compare_weights(first, second, base, machine=machine).change_cosine()
        cosines += [] if cosine is None else [cosine]
    return kinship_words(cosines)
