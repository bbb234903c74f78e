"""Health of routers, read from the counts of batches: loads, their entropy, dead experts, gates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge.contracts import AuxiliaryMetrics

if TYPE_CHECKING:
    from torch import Tensor


# An expert with a smaller share of the tokens is dead, unless there are so many that an even share is small.
_DEAD = 0.01
_DEAD_OF_EVEN = 0.1
# A heat map with more rows has one for each layer.
_ROWS = 64


@dataclass(frozen=True)
class RouterHealth(AuxiliaryMetrics):
    """Health of the routers of `layers`, each with `experts` of which a token gets `top_k`.

    By layer: `load/<layer>/<expert>`, the share of tokens that an expert gets; `load_entropy/<layer>`, 1
    where all get equally many and 0 where one gets all; `dead_experts/<layer>`, those with less than 1 % of
    the tokens, or a tenth of an even share if that is less; `gate_sum/<layer>`, the mean over tokens of the
    chosen experts' probabilities together.
    """

    layers: tuple[int, ...]
    experts: int
    top_k: int

    @property
    def least(self) -> float:
        """Share of tokens below which an expert is dead."""
        return min(_DEAD, _DEAD_OF_EVEN * self.top_k / self.experts)

    def values(self, counts: Tensor) -> Mapping[str, float]:
        return dict(self._values(counts))

    def _values(self, counts: Tensor) -> Iterator[tuple[str, float]]:
        from emberge_moe.balance import Loads

        loads = Loads.of(counts, len(self.layers))
        gates = (loads.gates / loads.tokens).tolist()
        for layer, shares, gate in zip(self.layers, loads.shares.tolist(), gates, strict=True):
            for expert, share in enumerate(shares):
                yield f"load/{layer}/{expert}", share
            yield f"load_entropy/{layer}", self._entropy(shares)
            yield f"dead_experts/{layer}", float(self._dead(shares))
            yield f"gate_sum/{layer}", gate

    def _entropy(self, shares: Sequence[float]) -> float:
        parts = [share / self.top_k for share in shares if share > 0]
        entropy = -sum(part * math.log(part) for part in parts)
        return max(0.0, entropy) / math.log(self.experts) if self.experts > 1 else 1.0

    def _dead(self, shares: Sequence[float]) -> int:
        return sum(share < self.least for share in shares)

    def warnings(self, counts: Tensor) -> Sequence[str]:
        from emberge_moe.balance import Loads

        by_layer = zip(self.layers, Loads.of(counts, len(self.layers)).shares.tolist(), strict=True)
        return [
            f"the router of layer {layer} has collapsed: half of its {self.experts} experts or more get "
            f"less than {self.least:.2%} of the tokens; raise balance, or lower learning_rate"
            for layer, shares in by_layer
            if 2 * self._dead(shares) >= self.experts
        ]

    def figures(self, points: Sequence[tuple[int, Mapping[str, float]]]) -> list[dict[str, Any]]:
        single = len(self.layers) * self.experts <= _ROWS
        rows = {
            f"layer {layer}, expert {expert}": f"load/{layer}/{expert}"
            for layer in self.layers
            for expert in range(self.experts)
        }
        if not single:
            rows = {f"layer {layer}": f"load_entropy/{layer}" for layer in self.layers}
        even = f"{self.top_k / self.experts:.3g}"
        return [
            {
                "title": "Load of experts over the steps" if single else "Entropy of experts' load",
                "heat_map": {
                    "rows": list(rows),
                    "columns": [f"{at:,}" for at, _ in points],
                    "values": [[values[name] for _, values in points] for name in rows.values()],
                },
                "caption": f"Share of the tokens that each expert gets, by optimizer step; {even} is even."
                if single
                else "By optimizer step: 1 where all experts of a layer get equally many tokens.",
            }
        ]
