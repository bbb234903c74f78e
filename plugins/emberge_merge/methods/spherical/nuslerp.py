"""Spherical interpolation of two models, or of their changes, by their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Measures, WeightRole

from emberge_merge.methods.spherical.gram import GramStrategy

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Nuslerp(GramStrategy):
    """Interpolate two models on the great circle; their weights set the second model's share (NuSLERP).

    t = α₂ / (α₁ + α₂), or one half if the weights sum to zero. With a base, the models' changes are
    interpolated and the result is added to the base.

    Example:
        merged:
          merge:
            models: [{model: ./a, weight: 0.7}, {model: ./b, weight: 0.3}]
            strategy: nuslerp
    """

    arity = range(2, 3)

    @property
    def weight_role(self) -> WeightRole:
        return "unused"  # not divided by their sum: a sum of zero is the middle

    def of_deltas(self, block: Block) -> bool:
        return block.has_base

    def coefficients(self, grams: Measures, block: Block) -> tuple[np.ndarray, str]:
        from emberge_merge.methods.spherical.angles import Span, slerp_coefficients

        span = Span.of(grams["products"], grams["differences"])
        first, second = block.weights.tolist()
        t = 0.5 if abs(first + second) < 1e-6 else second / (first + second)
        factors, warning = slerp_coefficients(span, t)
        return factors, warning
