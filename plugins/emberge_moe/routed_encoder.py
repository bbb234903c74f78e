"""An encoder with routers: its embeddings, and its routers' loss for each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from emberge import Auxiliary, Encoder, Similarity, TokenisedText
from emberge.contracts import Embedded, LocatedText, TokenPredictor
from numpy.typing import NDArray
from torch import Tensor, nn

from emberge_moe.balance import Loads, RouterHealth, balance_loss, sum_routings
from emberge_moe.routers import RouterTaps, Routing


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

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None
    ) -> list[TokenisedText]:
        return self._inner.tokenise(texts, prompt=prompt, max_length=max_length)

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        return self._inner.collate(texts)

    def locate(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, **more: Any
    ) -> list[LocatedText]:
        return self._inner.locate(texts, seconds, **more)

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        return self._inner.states(features)

    def stored_names(self) -> Mapping[str, str]:
        return self._inner.stored_names()

    def save(self, folder: Path) -> None:
        self._inner.save(folder)

    def states_and_auxiliary(
        self, features: Mapping[str, Tensor]
    ) -> tuple[Tensor, Auxiliary | None]:
        with self._taps as taps:
            states = self._inner.states(features)
            return states, self._make_auxiliary(taps.routings, features)

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        with self._taps as taps:
            embedded = self._inner(features, layers)
            return Embedded(
                embedded.embeddings, embedded.layers, self._make_auxiliary(taps.routings, features)
            )

    def _make_auxiliary(
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
            return self._balance * balance_loss(sums, batch, health.top_k)

        return Auxiliary(sums.loads.flat(), term, health)


class PredictingRoutedEncoder(RoutedEncoder):
    """A routed encoder that predicts tokens, too (see `TokenPredictor`)."""

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
