"""Spherical mean of any number of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import BasePolicy, Block, Measures

from emberge_merge.methods.spherical.gram import GramStrategy

if TYPE_CHECKING:
    import numpy as np

_STEPS = {"projected": 0, "log": 1}


@dataclass(frozen=True, kw_only=True)
class MultiSlerp(GramStrategy):
    """Average the models' directions on the sphere, at their mean length (BOOM's Multi-SLERP).

    With uᵢ = Wᵢ/‖Wᵢ‖ and M the normalised Σ αᵢ uᵢ, the result is (Σ αᵢ ‖Wᵢ‖) · exp_M(Σ αᵢ log_M(uᵢ))
    (arXiv:2602.05787, eqs. 2 and 3). Each tensor is a W of its own, as in mergekit; the equations can be read
    of the whole model as one vector too.

    Example:
        merged:
          merge:
            models: [./a, ./b, ./c]
            strategy: multi_slerp
    """

    mode: Literal["log", "projected"] = "log"
    """Steps on the sphere: one (`log`, the formula) or none (`projected`).

    `projected` gives (Σ αᵢ ‖Wᵢ‖) · M. mergekit's multislerp gives the same, as its projections onto the
    tangent space sum to zero.
    """
    space: Literal["weights", "deltas"] = "weights"
    """Vectors to average: the weights, or the changes to the base (`deltas`), a stronger operator."""

    @property
    def base_policy(self) -> BasePolicy:
        return "required" if self.space == "deltas" else "forbidden"

    def of_deltas(self, block: Block) -> bool:
        return self.space == "deltas"

    def coefficients(self, grams: Measures, block: Block) -> tuple[np.ndarray, str]:
        from emberge_merge.methods.spherical.angles import Span, mean_direction

        span = Span.of(grams["products"], grams["differences"])
        weights = block.weights
        factors, warning = mean_direction(span, weights, steps=_STEPS[self.mode], tolerance=1e-10)
        return factors, warning
