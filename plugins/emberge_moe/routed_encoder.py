"""An encoder with routers: its embeddings, and its routers' loss for each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from emberge import Auxiliary, Encoder, Similarity, TokenisedText
from emberge.contracts import Embedded, LocatedText
from numpy.typing import NDArray
from torch import Tensor, nn

from emberge_moe.balance import Loads, RouterHealth, balance_loss, sum_routings
from emberge_moe.routers import RouterTaps, Routing


class RoutedEncoder:
    """An encoder (see `Encoder`) that gives the training `balance` times the balance loss of its routers."""

    def __init__(self, inner: Encoder, taps: RouterTaps, balance: float) -> None:
        self._inner: Any = inner
        self._taps, self._balance = taps, balance

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self._inner.module
        return module

    @property
    def dimension(self) -> int:
        return int(self._inner.dimension)

    @property
    def similarity(self) -> Similarity:
        similarity: Similarity = self._inner.similarity
        return similarity

    @property
    def tokenizer_fingerprint(self) -> str:
        return str(self._inner.tokenizer_fingerprint)

    @property
    def prompts(self) -> Mapping[str, str]:
        prompts: Mapping[str, str] = self._inner.prompts
        return prompts

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None
    ) -> list[TokenisedText]:
        tokenised: list[TokenisedText] = self._inner.tokenise(
            texts, prompt=prompt, max_length=max_length
        )
        return tokenised

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        features: Mapping[str, Tensor] = self._inner.collate(texts)
        return features

    def locate(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, **more: Any
    ) -> list[LocatedText]:
        located: list[LocatedText] = self._inner.locate(texts, seconds, **more)
        return located

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        states: Tensor = self._inner.states(features)
        return states

    def stored_names(self) -> Mapping[str, str]:
        names: Mapping[str, str] = self._inner.stored_names()
        return names

    def save(self, folder: Path) -> None:
        self._inner.save(folder)

    def states_and_auxiliary(
        self, features: Mapping[str, Tensor]
    ) -> tuple[Tensor, Auxiliary | None]:
        with self._taps as taps:
            states: Tensor = self._inner.states(features)
            return states, self._make_auxiliary(taps.routings, features)

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        with self._taps as taps:
            embedded: Embedded = self._inner(features, layers)
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
        token: int | None = self._inner.mask_id
        return token

    @property
    def vocabulary(self) -> int:
        return int(self._inner.vocabulary)

    @property
    def max_length(self) -> int | None:
        length: int | None = self._inner.max_length
        return length

    def pack(self, rows: Sequence[Sequence[TokenisedText]]) -> Mapping[str, Tensor]:
        features: Mapping[str, Tensor] = self._inner.pack(rows)
        return features

    def special(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        mask: NDArray[np.bool_] = self._inner.special(ids)
        return mask

    @property
    def logits(self) -> Callable[[Tensor], Tensor]:
        head: Callable[[Tensor], Tensor] = self._inner.logits
        return head
