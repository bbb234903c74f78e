"""Forward pass of a merge that is not written: its weights are functions of the coefficients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from emberge import Encoder, TokenisedText
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from emberge_weights.layers.member_tensors import MemberTensors
from emberge_weights.layers.sizes import CHUNK

__all__ = ["Embed", "MixedForward"]

# From texts to their embeddings [n, d], which coefficients have a gradient through.
Embed = Callable[[Sequence[TokenisedText]], Tensor]


class MixedForward:
    """Encoder whose parameters are sums over members, weighed by block.

    In memory are one model, its gradient and the activations of a chunk: the members stay on disk, and
    each chunk is computed again for the gradient.
    """

    def __init__(self, encoder: Encoder, members: MemberTensors) -> None:
        encoder.module.eval().requires_grad_(False)
        self.encoder = encoder
        self.members = members
        self._device = next(encoder.module.parameters()).device
        self._forward = _Forward(encoder)

    def at(self, coefficients: Tensor) -> Embed:
        """Return the embedding of texts by the merge with coefficients [blocks, members]."""
        parameters = {
            f"inside.{name}": _mixed(coefficients[block], self.members, name).to(self._device)
            for name, block in self.members.blocks.items()
        }

        def run(features: Mapping[str, Tensor]) -> Tensor:
            found: Tensor = functional_call(self._forward, parameters, (features,))
            return found

        def embed(texts: Sequence[TokenisedText]) -> Tensor:
            order = sorted(range(len(texts)), key=lambda place: -len(texts[place].ids))
            parts = [
                checkpoint(
                    run,
                    self._features([texts[place] for place in order[start : start + CHUNK]]),
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
                for start in range(0, len(order), CHUNK)
            ]
            back = torch.tensor(order).argsort()
            return torch.cat(parts).cpu()[back]

        return embed

    def _features(self, texts: Sequence[TokenisedText]) -> dict[str, Tensor]:
        features = self.encoder.collate(texts)
        return {name: tensor.to(self._device) for name, tensor in features.items()}


class _Forward(nn.Module):
    """An encoder as a module that can be called with other parameters."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.inside = encoder.module
        self._embed: Callable[[Mapping[str, Tensor]], Tensor] = lambda features: (
            encoder(features).embeddings
        )

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        return self._embed(features)


class _Mixed(torch.autograd.Function):
    """Sum of a parameter over members, which are read again for the gradient of their weights."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, members: MemberTensors, name: str) -> Tensor:
        ctx.members, ctx.name = members, name
        return members.mixed(name, weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.members.products(ctx.name, gradients[0]), None, None


def _mixed(weights: Tensor, members: MemberTensors, name: str) -> Tensor:
    return _Mixed.apply(weights, members, name)  # type: ignore[no-any-return,no-untyped-call]
