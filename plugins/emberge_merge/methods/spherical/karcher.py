"""The Karcher mean of any number of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from emberge import Block, Measures, NonNegative, NumberRange

from emberge_merge.methods.spherical.gram import GramStrategy

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Karcher(GramStrategy):
    """Find the point of the sphere that is nearest to all models' directions, at their mean length.

    M ← exp_M(Σ αᵢ log_M(uᵢ)) from the normalised mean until a step is shorter than `tol` (Karcher, 1977; for
    merging arXiv:2603.04972). The mean lies in the models' span, so all steps are computed on the models'
    inner products: about a hundred values, without further passes over the weights.

    Example:
        merged:
          merge:
            models: [./a, ./b, ./c]
            strategy: karcher
    """

    max_iter: Annotated[int, NumberRange(least=1, most=10**6)] = 100
    """Largest number of steps; mergekit's is 10."""
    tol: NonNegative = 1e-10
    """Length of a step, an angle in radians, below which the iteration ends; mergekit's is 1e-5."""

    base_policy = "forbidden"

    def coefficients(self, grams: Measures, block: Block) -> tuple[np.ndarray, str]:
        from emberge_merge.methods.spherical.angles import Span, mean_direction

        span = Span.of(grams["products"], grams["differences"])
        weights = block.weights
        factors, warning = mean_direction(span, weights, steps=self.max_iter, tolerance=self.tol)
        return factors, warning
