"""Heads: of whole texts, and of single tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_SPREAD = 0.02  # standard deviation of fresh weights, as transformers draws them


class TextHead(nn.Module):
    """Dense layer, GELU, dropout and a linear layer on each text's pooled hidden state.

    With `late` pooling it is on each token, and the mean is that of logits (EuroBERT, arXiv:2503.05500).
    """

    def __init__(self, width: int, outputs: int, pooling: str, dropout: float) -> None:
        super().__init__()
        self.pooling = pooling
        self.dense = nn.Linear(width, width)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, outputs)
        _draw_weights(self)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return logits [b, c] of hidden states [b, t, d], of which `mask` [b, t] are real."""
        if self.pooling == "late":
            return _mean_over_tokens(self._compute_logits(states), mask)
        return self._compute_logits(_pool_states(states, mask, self.pooling))

    def _compute_logits(self, states: Tensor) -> Tensor:
        found: Tensor = self.out(self.dropout(self.activation(self.dense(states))))
        return found


class TokenHead(nn.Module):
    """Dropout and a linear layer on each token's hidden state."""

    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, outputs)
        _draw_weights(self)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return logits [b, t, c] of hidden states [b, t, d]."""
        found: Tensor = self.out(self.dropout(states))
        return found


def first_places(mask: Tensor) -> Tensor:
    """Return the place [b] of each text's first token, which is not 0 where padding is on the left."""
    return mask.argmax(1)


def _pool_states(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    if pooling == "mean":
        return _mean_over_tokens(states, mask)
    first = first_places(mask)
    place = first if pooling == "bos" else first + mask.sum(1) - 1
    return states[torch.arange(len(states), device=states.device), place]


def _mean_over_tokens(values: Tensor, mask: Tensor) -> Tensor:
    real = mask.to(values.dtype)[..., None]
    return (values * real).sum(1) / real.sum(1)


def _draw_weights(head: nn.Module) -> None:
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=_SPREAD)
            nn.init.zeros_(module.bias)
