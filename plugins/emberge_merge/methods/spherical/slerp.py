"""Spherical interpolation of two models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Cosine, Measures, PerTensor

from emberge_merge.methods.spherical.gram import GramStrategy

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Slerp(GramStrategy):
    """Interpolate two models on the great circle through them (Shoemake, 1985).

    W = sin((1-t)θ)/sin θ · A + sin(tθ)/sin θ · B, with θ the angle between A and B. Small angles are exact.
    mergekit interpolates linearly above a cosine of 0.9995, so that most of its merges of models with one
    base are linear.

    Example:
        merged:
          merge:
            models: [./a, ./b]
            strategy: {slerp: {t: 0.3}}
    """

    t: PerTensor = PerTensor(0.5, within=(0, 1))
    """Share of the way from the first model (0) to the second (1)."""
    linear_threshold: Cosine | None = None
    """Cosine above which interpolation is linear; mergekit's is 0.9995. By default there is none."""

    arity = range(2, 3)
    base_policy = "forbidden"
    weight_role = "unused"

    def coefficients(self, grams: Measures, block: Block) -> tuple[np.ndarray, str]:
        from emberge_merge.methods.spherical.angles import Span, slerp_coefficients

        span = Span.of(grams["products"], grams["differences"])
        factors, warning = slerp_coefficients(span, block.options.t, self.linear_threshold)
        return factors, warning
