"""Forward pass of a merge that is not written: its weights are functions of the coefficients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from emberge import Encoder, TokenisedText
from emberge.encoding import device_of, embed_with_parameters
from torch import Tensor

from emberge_weights.layers.member_tensors import MemberTensors
from emberge_weights.layers.sizes import CHUNK

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
        self._device = device_of(encoder)

    def at(self, coefficients: Tensor) -> Embed:
        """Return the embedding of texts by the merge with coefficients [blocks, members]."""
        parameters = {
            name: _mixed(coefficients[block], self.members, name).to(self._device)
            for name, block in self.members.blocks.items()
        }

        def embed(texts: Sequence[TokenisedText]) -> Tensor:
            return embed_with_parameters(self.encoder, parameters, texts, CHUNK)

        return embed


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
