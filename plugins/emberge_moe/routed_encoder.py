"""An encoder with routers: its embeddings, its routers' outputs, and their loss for each batch."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

from emberge import Auxiliary, Encoder
from emberge.contracts import Embedded, TokenPredictor
from torch import Tensor, nn

from emberge_moe.balance import Loads, RouterHealth, Routing, compute_balance_loss, sum_routings

ROUTERS = {"qwen3_moe": "mlp.gate", "mixtral": "mlp.gate", "emberge_routed": "router"}
"""Path of the router at the end of its module's name, by the model's type: `emberge_routed` or stock ones.

A router returns a tuple: first its logits [t, experts], last the chosen experts [t, k].
"""


class RouterTaps:
    """Hooks on a model's routers, which keep the routers' outputs inside a `with` block."""

    def __init__(self, model: nn.Module, path: str) -> None:
        self._taken: dict[int, Routing] | None = None
        self.layers: list[int] = []
        for name, module in model.named_modules():
            if name.endswith(f".{path}"):
                layer = next(int(p) for p in reversed(name.split(".")) if p.isdigit())
                self._tap_router(module, layer)

    def _tap_router(self, router: nn.Module, layer: int) -> None:
        self.layers.append(layer)
        router.register_forward_hook(lambda _, __, output: self._keep(layer, output))

    def _keep(self, layer: int, output: Any) -> None:
        # With gradient checkpointing, blocks are computed again after the taps are closed.
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


def _take_from_inner(name: str) -> Any:
    """Return a property whose value is the wrapped encoder's attribute or method `name`."""
    return property(operator.attrgetter(f"_inner.{name}"))


class RoutedEncoder:
    """An encoder (see `Encoder`) that gives the training `balance` times the balance loss of its routers."""

    module = _take_from_inner("module")
    dimension = _take_from_inner("dimension")
    similarity = _take_from_inner("similarity")
    tokenizer_fingerprint = _take_from_inner("tokenizer_fingerprint")
    prompts = _take_from_inner("prompts")
    reads_queries_apart = _take_from_inner("reads_queries_apart")
    tokenise = _take_from_inner("tokenise")
    collate = _take_from_inner("collate")
    locate = _take_from_inner("locate")
    states = _take_from_inner("states")
    stored_names = _take_from_inner("stored_names")
    save = _take_from_inner("save")

    def __init__(self, inner: Encoder, taps: RouterTaps, balance: float) -> None:
        self._inner = cast(TokenPredictor, inner)
        self._taps, self._balance = taps, balance

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        with self._taps as taps:
            embedded = self._inner(features, layers)
            return Embedded(
                embedded.embeddings, embedded.layers, self._build_auxiliary(taps.routings, features)
            )

    def _build_auxiliary(
        self, routings: Mapping[int, Routing], features: Mapping[str, Tensor]
    ) -> Auxiliary | None:
        """Return the loss of a chunk's router outputs; None without routers."""
        if not routings:
            return None
        sums = sum_routings(list(routings.values()), features.get("attention_mask"))
        choices = next(iter(routings.values())).chosen
        health = RouterHealth(tuple(routings), sums.probabilities.shape[1], choices.shape[1])

        def term(counts: Tensor) -> Tensor:
            """Return this chunk's part of the loss, given the whole batch's counts."""
            batch = Loads.of(counts, len(health.layers))
            return self._balance * compute_balance_loss(sums, batch, health.top_k)

        return Auxiliary(sums.loads.flatten(), term, health)


class PredictingRoutedEncoder(RoutedEncoder):
    """A routed encoder that predicts tokens, too (see `TokenPredictor`)."""

    has_auxiliary = True
    mask_id = _take_from_inner("mask_id")
    vocabulary = _take_from_inner("vocabulary")
    max_length = _take_from_inner("max_length")
    pack = _take_from_inner("pack")
    special = _take_from_inner("special")
    logits = _take_from_inner("logits")

    def states_and_auxiliary(
        self, features: Mapping[str, Tensor]
    ) -> tuple[Tensor, Auxiliary | None]:
        with self._taps as taps:
            states: Tensor = self._inner.states(features)
            return states, self._build_auxiliary(taps.routings, features)
