"""Losses that keep a router's experts in use, from sums over tokens.

Once the loads and the number of tokens of the whole batch are known, a chunk's part of a loss is linear in
its sums with a gradient. So the parts of chunks and ranks add up to the loss of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from emberge_moe.routers import Routing

Form = Literal["switch", "paper", "hf"]


@dataclass(frozen=True, eq=False)
class Loads:
    """Counts over tokens without a gradient: by layer and expert, the chosen experts' probability, tokens."""

    experts: Tensor
    """Tokens of each expert [layers, experts]."""
    gates: Tensor
    """Sum over tokens of the chosen experts' probabilities [layers]."""
    tokens: Tensor
    """Number of tokens []."""

    def flat(self) -> Tensor:
        """Return all counts in one row."""
        return torch.cat([self.experts.flatten(), self.gates, self.tokens[None]])

    @classmethod
    def of(cls, counts: Tensor, layers: int) -> Loads:
        """Return the counts of a row, which may be the sum of several."""
        experts, gates = counts[: -layers - 1].view(layers, -1), counts[-layers - 1 : -1]
        return cls(experts, gates, counts[-1])

    @property
    def shares(self) -> Tensor:
        """Share of the tokens that each expert gets [layers, experts]; those of a layer sum to k."""
        return self.experts / self.tokens


@dataclass(frozen=True, eq=False)
class RouterSums:
    """Sums over a chunk's tokens: counts, and what has a gradient."""

    loads: Loads
    probabilities: Tensor
    """Sum of each expert's probability [layers, experts]."""
    squares: Tensor
    """Sum of the squared log-sum-exp of logits [layers]."""


def sums_of(routings: Sequence[Routing], mask: Tensor | None) -> RouterSums:
    """Return the sums over all tokens of which `mask` is not 0; None counts all of them."""
    first = routings[0].logits
    counted = first.new_ones(len(first), dtype=torch.promote_types(first.dtype, torch.float32))
    if mask is not None and mask.numel() == len(first):  # else padding was taken out before
        counted = mask.flatten().to(counted)
    layers = [_layer_sums(one, counted) for one in routings]
    experts, gates, probabilities, squares = (torch.stack(s) for s in zip(*layers, strict=True))
    loads = Loads(experts, gates, counted.double().sum())
    return RouterSums(loads, probabilities, squares)


def _layer_sums(routing: Routing, counted: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logits = routing.logits.to(counted)
    probabilities = logits.softmax(-1)
    taken = one_hot(routing.chosen, logits.shape[1]).sum(1)
    column = counted[:, None]
    return (
        (taken * column).double().sum(0),
        (probabilities * taken * column).detach().double().sum(),
        (probabilities * column).sum(0),
        (logits.logsumexp(-1).square() * counted).sum(),
    )


def balance_loss(form: Form, sums: RouterSums, batch: Loads, top_k: int) -> Tensor:
    """Return a chunk's part of the balance loss, given the loads of the whole batch.

    With the load r of an expert and its mean probability p: `switch` is E · Σ r/k · p, averaged over layers
    (Fedus et al., 2021, arXiv:2101.03961; Gale et al., 2022, arXiv:2211.15841), 1 at best; `paper` is Σ r · p
    (Nussbaum and Duderstadt, 2025, arXiv:2502.07972, eq. 1); `hf` is E · Σ r · p over the tokens of all
    layers together, as transformers has it.
    """
    shares, means = batch.shares, sums.probabilities / batch.tokens
    if form == "hf":
        shares, means = shares.mean(0, keepdim=True), means.mean(0, keepdim=True)
    products = (shares * means).sum(1).mean()
    experts = shares.shape[1]
    factor = {"switch": experts / top_k, "paper": 1.0, "hf": float(experts)}[form]
    return (factor * products).to(sums.probabilities)


def z_loss(sums: RouterSums, batch: Loads) -> Tensor:
    """Return a chunk's part of the mean squared log-sum-exp of logits.

    Zoph et al., 2022, arXiv:2202.08906, eq. 5; the mean is over tokens and layers.
    """
    return (sums.squares / batch.tokens).mean().to(sums.squares)


@dataclass(frozen=True)
class RouterLosses:
    """Losses of a training's routers: their factors, and the form of the balance."""

    balance: float
    form: Form
    z_loss: float

    def part(self, sums: RouterSums, batch: Loads, top_k: int) -> Tensor:
        """Return a chunk's part of their weighted sum, given the loads of the whole batch."""
        total = sums.squares.new_zeros(())
        if self.balance:
            total = total + self.balance * balance_loss(self.form, sums, batch, top_k)
        if self.z_loss:
            total = total + self.z_loss * z_loss(sums, batch)
        return total
