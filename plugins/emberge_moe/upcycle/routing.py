"""Routing of a model to be: its layers, experts, gates and router."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from emberge import WholeNumber

Layers = Literal["alternate", "all"] | tuple[WholeNumber, ...]

_NORMAL = re.compile(r"normal\((\d+(?:\.\d+)?(?:e-?\d+)?)\)")


@dataclass(frozen=True)
class LayerRouting:
    """Layers that are routed, of a model with `depth` layers, and how each of them is."""

    depth: int
    layers: tuple[int, ...]
    experts: int
    top_k: int
    normalize_gates: bool = True
    gate_scale: float = 1.0

    @property
    def complete(self) -> bool:
        """True if every layer is routed."""
        return len(self.layers) == self.depth

    @property
    def dense_layers(self) -> list[int]:
        """The layers that keep their feed-forward block."""
        return [layer for layer in range(self.depth) if layer not in self.layers]


def chosen_layers(layers: Layers, depth: int) -> tuple[int, ...]:
    """Return the numbers of the layers that an option names, in order.

    Raises:
        ValueError: for layers that a model of this depth does not have, or none at all.
    """
    if layers == "alternate":
        chosen = tuple(range(1, depth, 2))
    elif layers == "all":
        chosen = tuple(range(depth))
    else:
        chosen = tuple(sorted(set(layers)))
    beyond = [layer for layer in chosen if not 0 <= layer < depth]
    if beyond:
        raise ValueError(f"layer {beyond[0]} does not exist: the model has layers 0 to {depth - 1}")
    if not chosen:
        raise ValueError(f"none of the model's layers, {depth} in number, would be routed")
    return chosen


def router_deviation(router: str) -> float:
    """Return the standard deviation of a router's first weights: 0 for `zeros`.

    Raises:
        ValueError: for a text that is neither `zeros` nor `normal(…)` with a number above 0.
    """
    if router == "zeros":
        return 0.0
    found = _NORMAL.fullmatch(router)
    if found is None or not float(found[1]):
        raise ValueError(f"router '{router}' is neither zeros nor, for example, normal(0.02)")
    return float(found[1])
