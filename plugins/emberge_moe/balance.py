"""Losses that keep a router's experts in use, and the routers' health, from sums over tokens.

If the loads and the number of tokens of the whole batch are known, a chunk's part of a loss is linear in the
chunk's differentiable sums. So the parts of all chunks and ranks add up to the loss of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from emberge.contracts import AuxiliaryMetrics, Figure, HeatMap
from torch import Tensor
from torch.nn.functional import one_hot

from emberge_moe.routed_format import name_load

# An expert is dead below this share of the tokens, and below this part of an even share.
_DEAD_SHARE = 0.01
_DEAD_PART_OF_EVEN = 0.1
# A heat map with more rows has one for each layer.
_MOST_FIGURE_ROWS = 64


class Routing(NamedTuple):
    """Logits [t, experts] of a layer's router for a batch's token positions, and chosen experts [t, k]."""

    logits: Tensor
    chosen: Tensor


@dataclass(frozen=True, eq=False)
class Loads:
    """Sums over tokens, without a gradient: choices by layer and expert, gate sums by layer, and tokens."""

    experts: Tensor
    """Tokens of each expert [layers, experts]."""
    gates: Tensor
    """Sum over tokens of the chosen experts' probabilities [layers]."""
    tokens: Tensor
    """Number of tokens []."""

    def flatten(self) -> Tensor:
        """Return all counts in one row."""
        return torch.cat([self.experts.flatten(), self.gates, self.tokens[None]])

    @classmethod
    def of(cls, counts: Tensor, layers: int) -> Loads:
        """Build the counts from a row that `flatten` returned, or from the sum of several such rows."""
        experts, gates = counts[: -layers - 1].view(layers, -1), counts[-layers - 1 : -1]
        return cls(experts, gates, counts[-1])

    @property
    def shares(self) -> Tensor:
        """Share of the tokens that each expert gets [layers, experts]; the shares of a layer sum to k."""
        return self.experts / self.tokens


@dataclass(frozen=True, eq=False)
class RouterSums:
    """Sums over a chunk's tokens: counts without a gradient, and differentiable sums."""

    loads: Loads
    probabilities: Tensor
    """Sum of each expert's probability [layers, experts]."""


def sum_routings(routings: Sequence[Routing], mask: Tensor | None) -> RouterSums:
    """Return the sums over all tokens with a nonzero `mask`; None counts all tokens."""
    first_logits = routings[0].logits
    is_counted = first_logits.new_ones(
        len(first_logits), dtype=torch.promote_types(first_logits.dtype, torch.float32)
    )
    if mask is not None and mask.numel() == len(first_logits):  # else padding was taken out before
        is_counted = mask.flatten().to(is_counted)
    layers = [_sum_layer(routing, is_counted) for routing in routings]
    experts, gates, probabilities = (torch.stack(s) for s in zip(*layers, strict=True))
    loads = Loads(experts, gates, is_counted.double().sum())
    return RouterSums(loads, probabilities)


def _sum_layer(routing: Routing, is_counted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = routing.logits.to(is_counted)
    probabilities = logits.softmax(-1)
    choices = one_hot(routing.chosen, logits.shape[1]).sum(1)
    column = is_counted[:, None]
    return (
        (choices * column).double().sum(0),
        (probabilities * choices * column).detach().double().sum(),
        (probabilities * column).sum(0),
    )


def compute_balance_loss(sums: RouterSums, batch: Loads, top_k: int) -> Tensor:
    """Return a chunk's part of the balance loss, given the loads of the whole batch.

    r is the load of an expert, p its mean probability, E the number of experts, and k the number that each
    token goes to. The loss is E · Σ r/k · p, averaged over layers (Fedus et al., 2021, arXiv:2101.03961; Gale
    et al., 2022, arXiv:2211.15841), which is 1 at best.
    """
    products = (batch.shares * (sums.probabilities / batch.tokens)).sum(1).mean()
    return (batch.shares.shape[1] / top_k * products).to(sums.probabilities)


@dataclass(frozen=True)
class RouterHealth(AuxiliaryMetrics):
    """Health of the routers of `layers`, each of which sends a token to `top_k` of its `experts`.

    The measures of a layer are `load/<layer>/<expert>`, the share of tokens that an expert gets;
    `load_entropy/<layer>`, 1 if all experts get equally many tokens and 0 if one gets all;
    `dead_experts/<layer>`, the number of experts with less than 1 % of the tokens, or with less than a tenth
    of an even share if that is less; and `gate_sum/<layer>`, the sum of the chosen experts' probabilities,
    averaged over tokens.
    """

    layers: tuple[int, ...]
    experts: int
    top_k: int

    @property
    def dead_share(self) -> float:
        """Share of tokens below which an expert is dead."""
        return min(_DEAD_SHARE, _DEAD_PART_OF_EVEN * self.top_k / self.experts)

    def values(self, counts: Tensor) -> Mapping[str, float]:
        return dict(self._list_values(counts))

    def _list_values(self, counts: Tensor) -> Iterator[tuple[str, float]]:
        loads = Loads.of(counts, len(self.layers))
        gates = (loads.gates / loads.tokens).tolist()
        for layer, shares, gate in zip(self.layers, loads.shares.tolist(), gates, strict=True):
            for expert, share in enumerate(shares):
                yield name_load(layer, expert), share
            yield f"load_entropy/{layer}", self._measure_entropy(shares)
            yield f"dead_experts/{layer}", float(self._count_dead_experts(shares))
            yield f"gate_sum/{layer}", gate

    def _measure_entropy(self, shares: Sequence[float]) -> float:
        parts = [share / self.top_k for share in shares if share > 0]
        entropy = -sum(part * math.log(part) for part in parts)
        return max(0.0, entropy) / math.log(self.experts) if self.experts > 1 else 1.0

    def _count_dead_experts(self, shares: Sequence[float]) -> int:
        return sum(share < self.dead_share for share in shares)

    def warnings(self, counts: Tensor) -> Sequence[str]:
        by_layer = zip(self.layers, Loads.of(counts, len(self.layers)).shares.tolist(), strict=True)
        return [
            f"the router of layer {layer} has collapsed: half of its {self.experts} experts or more get "
            f"less than {self.dead_share:.2%} of the tokens; raise balance, or lower learning_rate"
            for layer, shares in by_layer
            if 2 * self._count_dead_experts(shares) >= self.experts
        ]

    def figures(self, points: Sequence[tuple[int, Mapping[str, float]]]) -> Sequence[Figure]:
        single = len(self.layers) * self.experts <= _MOST_FIGURE_ROWS
        rows = {
            f"layer {layer}, expert {expert}": name_load(layer, expert)
            for layer in self.layers
            for expert in range(self.experts)
        }
        if not single:
            rows = {f"layer {layer}": f"load_entropy/{layer}" for layer in self.layers}
        even = f"{self.top_k / self.experts:.3g}"
        return [
            Figure(
                title="Load of experts over the steps" if single else "Entropy of experts' load",
                heat_map=HeatMap(
                    rows=list(rows),
                    columns=[f"{at:,}" for at, _ in points],
                    values=[[values[name] for _, values in points] for name in rows.values()],
                ),
                caption=f"Share of the tokens that each expert gets, by optimizer step; {even} is even."
                if single
                else "By optimizer step: 1 where all experts of a layer get equally many tokens.",
            )
        ]
