"""An encoder with routers: its embeddings, and its own loss of each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import Auxiliary, Embedded, Encoder, TokenisedText
from torch import Tensor, nn

from emberge_moe.balance import Loads, RouterSums, balance_loss, sums_of, z_loss
from emberge_moe.router_health import RouterHealth
from emberge_moe.routers import RouterTaps

if TYPE_CHECKING:
    from emberge_moe.routed import Routed

__all__ = ["RoutedEncoder"]


class RoutedEncoder:
    """An encoder (see `Encoder`) that hands the balance of its routers to the training."""

    def __init__(self, inner: Encoder, taps: RouterTaps, options: Routed) -> None:
        self._inner: Any = inner
        self._taps, self._options = taps, options

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self._inner.module
        return module

    @property
    def dimension(self) -> int:
        return int(self._inner.dimension)

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
        found: list[TokenisedText] = self._inner.tokenise(
            texts, prompt=prompt, max_length=max_length
        )
        return found

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        features: Mapping[str, Tensor] = self._inner.collate(texts)
        return features

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        states: Tensor = self._inner.states(features)
        return states

    def stored_names(self) -> Mapping[str, str]:
        names: Mapping[str, str] = self._inner.stored_names()
        return names

    def save(self, folder: Path) -> None:
        self._inner.save(folder)

    def __call__(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        with self._taps as taps:
            found: Embedded = self._inner(features, layers)
            routings = taps.taken
        if not routings:
            return found
        sums = sums_of(list(routings.values()), features.get("attention_mask"))
        chosen = next(iter(routings.values())).chosen
        health = RouterHealth(tuple(routings), sums.probabilities.shape[1], chosen.shape[1])
        return Embedded(found.embeddings, found.layers, self._auxiliary(sums, health))

    def _auxiliary(self, sums: RouterSums, health: RouterHealth) -> Auxiliary:
        options = self._options

        def term(counts: Tensor) -> Tensor:
            """Return this chunk's part of the losses, given the whole batch's counts."""
            batch = Loads.of(counts, len(health.layers))
            total = sums.squares.new_zeros(())
            if options.balance:
                part = balance_loss(options.form, sums, batch, health.top_k)
                total = total + options.balance * part
            if options.z_loss:
                total = total + options.z_loss * z_loss(sums, batch)
            return total

        return Auxiliary(sums.loads.flat(), term, health)
