"""An encoder with routers: its embeddings, its routers' outputs, and their loss for each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from emberge import Auxiliary, Encoder, Similarity, TokenisedText
from emberge.contracts import Embedded, TokenPredictor
from emberge_encoder import LocatedText, LocatingEncoder
from numpy.typing import NDArray
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


class RoutedEncoder:
    """An encoder (see `Encoder`) that gives the training `balance` times the balance loss of its routers."""

    def __init__(self, inner: Encoder, taps: RouterTaps, balance: float) -> None:
        self._inner = cast(TokenPredictor, inner)
        self._taps, self._balance = taps, balance

    @property
    def module(self) -> nn.Module:
        return self._inner.module

    @property
    def dimension(self) -> int:
        return self._inner.dimension

    @property
    def similarity(self) -> Similarity:
        return self._inner.similarity

    @property
    def tokenizer_fingerprint(self) -> str:
        return self._inner.tokenizer_fingerprint

    @property
    def prompts(self) -> Mapping[str, str]:
        return self._inner.prompts

    @property
    def reads_queries_apart(self) -> bool:
        return bool(self._inner.reads_queries_apart)

    def tokenise(self, texts: Sequence[str], **options: Any) -> list[TokenisedText]:
        tokenised: list[TokenisedText] = self._inner.tokenise(texts, **options)
        return tokenised

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        return self._inner.collate(texts)

    def locate(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, **options: Any
    ) -> list[LocatedText]:
        return cast(LocatingEncoder, self._inner).locate(texts, seconds, **options)

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        return self._inner.states(features)

    def stored_names(self) -> Mapping[str, str]:
        return self._inner.stored_names()

    def save(self, folder: Path) -> None:
        self._inner.save(folder)

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

    def states_and_auxiliary(
        self, features: Mapping[str, Tensor]
    ) -> tuple[Tensor, Auxiliary | None]:
        with self._taps as taps:
            states: Tensor = self._inner.states(features)
            return states, self._build_auxiliary(taps.routings, features)

    @property
    def mask_id(self) -> int | None:
        return self._inner.mask_id

    @property
    def vocabulary(self) -> int:
        return self._inner.vocabulary

    @property
    def max_length(self) -> int | None:
        return self._inner.max_length

    def pack(self, rows: Sequence[Sequence[TokenisedText]]) -> Mapping[str, Tensor]:
        return self._inner.pack(rows)

    def special(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self._inner.special(ids)

    @property
    def logits(self) -> Callable[[Tensor], Tensor]:
        return self._inner.logits
