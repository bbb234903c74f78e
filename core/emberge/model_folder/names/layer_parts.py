"""Parts of a layer, attention and MLP, and the order in which layers are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from emberge.model_folder.names.tensor_names import LAYER, layer_of

__all__ = ["EMBEDDING_LAYER", "FINAL_LAYER", "PARTS", "Part", "layer_order", "part_of"]

Part = Literal["attention", "mlp", "embedding", "other", "vector"]
PARTS: tuple[Part, ...] = ("attention", "mlp", "embedding", "other", "vector")
EMBEDDING_LAYER, FINAL_LAYER = "embeddings", "final"
# Mixing over tokens; the convolutions of hybrids are in its place.
_ATTENTION = re.compile(r"attn|attention|\bconv\.", re.IGNORECASE)


def part_of(name: str, shape: Sequence[int]) -> Part:
    """Return the part of its layer that a tensor belongs to, by canonical name and shape.

    Norms and biases are `vector`, matrices of a layer `attention` or `mlp`, and those outside the layers
    `embedding` or `other`.
    """
    if len(shape) < 2:
        return "vector"
    found = LAYER.search(name)
    if found is None:
        return "embedding" if layer_of(name) == EMBEDDING_LAYER else "other"
    return "attention" if _ATTENTION.search(name, found.end()) else "mlp"


def layer_order(layers: Iterable[str]) -> list[str]:
    """Return layers sorted: embeddings, layers by number, other towers' likewise, the last norm, the rest."""
    return sorted(dict.fromkeys(layers), key=_place)


def _place(layer: str) -> tuple[int, str, int]:
    if layer == EMBEDDING_LAYER:
        return 0, "", 0
    tower, _, number = layer.rpartition(".")
    if number.isdecimal():
        return 1 if tower == "layers" else 2, tower, int(number)
    return (3 if layer == FINAL_LAYER else 4), layer, 0
