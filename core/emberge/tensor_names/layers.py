"""Layers of tensors by canonical name: their numbers, depths, parts (attention and MLP), and order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

Part = Literal["attention", "mlp", "embedding", "other", "vector"]
PARTS: tuple[Part, ...] = ("attention", "mlp", "embedding", "other", "vector")
EMBEDDING_LAYER, FINAL_LAYER = "embeddings", "final"
# Mixing over tokens; the convolutions of hybrids are in its place.
LAYER = re.compile(r"(?:^|\.)(layers|layer|h|blocks|block|albert_layer_groups)\.(\d+)\.")
# Prefixes of the layers of a text trunk; any other word (`visual`) is a namespace of its own.
_TRUNK = frozenset({"", "encoder", "decoder", "transformer", "model"})
_FINAL = frozenset({"norm", "final_norm", "ln_f", "final_layernorm"})
_ATTENTION = re.compile(r"attn|attention|\bconv\.", re.IGNORECASE)


def layer_of(name: str) -> str:
    """Return the layer of a canonical name: `layers.7`, `visual.blocks.3`, or a pseudo-layer.

    Pseudo-layers are `embeddings`, `final` (the last norm), and the first word of anything else (`pooler`,
    `2_Dense`, `lm_head`).
    """
    found = LAYER.search(name)
    if found:
        space = name[: found.start()]
        label = f"layers.{found[2]}"
        return label if space in _TRUNK else f"{space}.{found[1]}.{found[2]}"
    first = name.partition(".")[0]
    if first.startswith(("embed", "wte", "wpe")):
        return EMBEDDING_LAYER
    return FINAL_LAYER if first in _FINAL else first


def layer_number(name: str) -> int | None:
    """Return the number of a tensor's layer in the text trunk, by canonical name; None outside the layers."""
    space, _, number = layer_of(name).rpartition(".")
    return int(number) if space == "layers" and number.isdecimal() else None


def depths(names: Iterable[str]) -> dict[str, float]:
    """Return the relative depth of each name: l / (L - 1) within its tower, and 0 outside the layers."""
    numbered: dict[str, tuple[str, int]] = {}
    heights: dict[str, int] = {}
    depth: dict[str, float] = {}
    for name in names:
        depth[name] = 0.0
        found = LAYER.search(name)
        if found:
            tower, number = layer_of(name).rpartition(".")[0], int(found[2])
            numbered[name] = tower, number
            heights[tower] = max(heights.get(tower, 0), number)
    for name, (tower, number) in numbered.items():
        depth[name] = number / heights[tower] if heights[tower] else 0.0
    return depth


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
    return sorted(dict.fromkeys(layers), key=_sort_key)


def _sort_key(layer: str) -> tuple[int, str, int]:
    if layer == EMBEDDING_LAYER:
        return 0, "", 0
    tower, _, number = layer.rpartition(".")
    if number.isdecimal():
        return 1 if tower == "layers" else 2, tower, int(number)
    return (3 if layer == FINAL_LAYER else 4), layer, 0
