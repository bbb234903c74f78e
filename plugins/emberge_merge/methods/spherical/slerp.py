"""Spherical interpolation of two models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Cosine, Measures, PerTensor

from emberge_merge.methods.spherical.gram import GramStrategy

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Slerp(GramStrategy):
    """Walk the great circle between two models (Shoemake, 1985).

    W = sin((1-t)θ)/sin θ · A + sin(tθ)/sin θ · B, θ the angle between A and B. The angle is exact however
    small; mergekit goes straight above a cosine of 0.9995, which makes most merges of siblings linear.

    Example:
        merged:
          merge:
            models: [./a, ./b]
            strategy: {slerp: {t: 0.3}}
    """

    t: PerTensor = PerTensor(0.5, within=(0, 1))
    """Share of the way from the first model (0) to the second (1)."""
    linear_threshold: Cosine | None = None
    """Cosine above which the way is straight; mergekit has 0.9995, and none is set here."""

    arity = range(2, 3)
    base_policy = "forbidden"
    weight_role = "unused"

    def coefficients(self, grams: Measures, block: Block) -> tuple[Tensor, str]:
        from emberge_merge.methods.spherical.angles import Span, slerp_coefficients

        span = Span.of(grams["products"], grams["differences"])
        factors, warning = slerp_coefficients(span, block.options.t, self.linear_threshold)
        return grams["products"].new_tensor(factors), warning
