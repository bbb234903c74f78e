"""Routers of a model: finding them, and recording their outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

ROUTERS = {
    "qwen3_moe": "mlp.gate",
    "mixtral": "mlp.gate",
    "emberge_routed": "router",
}
"""Path of the router at the end of its module's name, by the model's type.

A router returns a tuple: first its logits [t, experts], last the chosen experts [t, k].
"""


class Routing(NamedTuple):
    """Logits [t, experts] of a layer's router for a batch's token positions, and chosen experts [t, k]."""

    logits: Tensor
    chosen: Tensor


class RouterTaps:
    """Hooks on a model's routers that keep their outputs while a `with` block is open."""

    def __init__(self, model: nn.Module, path: str) -> None:
        self._taken: dict[int, Routing] | None = None
        self.layers: list[int] = []
        for name, module in model.named_modules():
            if name.endswith(f".{path}"):
                layer = next(int(p) for p in reversed(name.split(".")) if p.isdigit())
                self._record_routing(module, layer)

    def _record_routing(self, router: nn.Module, layer: int) -> None:
        self.layers.append(layer)
        router.register_forward_hook(lambda _, __, output: self._keep(layer, output))

    def _keep(self, layer: int, output: Any) -> None:
        # A block that is computed again for its gradient comes here while nobody asks.
        if self._taken is not None:
            self._taken[layer] = Routing(output[0], output[-1])

    def __enter__(self) -> RouterTaps:
        self._taken = {}
        return self

    def __exit__(self, *_: object) -> None:
        self._taken = None

    @property
    def routings(self) -> Mapping[int, Routing]:
        """Outputs of the routers since the taps were opened, by layer."""
        return dict(sorted((self._taken or {}).items()))
