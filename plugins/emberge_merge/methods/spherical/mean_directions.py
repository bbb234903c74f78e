"""Combinations of models by the angles between them, and means of directions: multi-SLERP, Karcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from emberge import (
    BasePolicy,
    Block,
    Measures,
    MergeStrategy,
    NonNegative,
    NumberRange,
    Pass,
    Stats,
    WeightedSum,
)

if TYPE_CHECKING:
    import numpy as np

    from emberge_merge.methods.spherical.angles import Span

_STEPS = {"projected": 0, "log": 1}


@dataclass(frozen=True, kw_only=True)
class GramStrategy(MergeStrategy):
    """Strategy whose result is a combination of a tensor's vectors, with coefficients from inner products.

    Models that were tuned from one base are nearly parallel, and products of the vectors alone would lose the
    angle between them: so differences to the first vector are measured too.
    """

    needs_torch = False
    passes = (Pass(),)

    def of_deltas(self, block: Block) -> bool:
        """Return whether changes are combined and added to the base; by default the models are combined."""
        return False

    def compute_coefficients(self, span: Span, block: Block) -> tuple[np.ndarray, str]:
        """Return float64 coefficients [models] for the vectors of a span, and a warning or ""."""
        raise NotImplementedError

    def measure(self, block: Block, stats: Stats) -> Measures:
        return block.inner_products(deltas=self.of_deltas(block), differences=True)

    def conclude(self, block: Block, stats: Stats) -> Measures:
        from emberge_merge.methods.spherical.angles import Span

        span = Span.of(stats[-1]["products"], stats[-1]["differences"])
        coefficients, warning = self.compute_coefficients(span, block)
        return {"coefficients": coefficients, "warning": warning}

    def formula(self, block: Block, stats: Stats) -> WeightedSum:
        return WeightedSum(stats[0]["coefficients"], of_deltas=self.of_deltas(block))


@dataclass(frozen=True, kw_only=True)
class MultiSlerp(GramStrategy):
    """Average the models' directions on the sphere, at their mean length (BOOM's Multi-SLERP).

    With uᵢ = Wᵢ/‖Wᵢ‖ and M the normalised Σ αᵢ uᵢ, the result is (Σ αᵢ ‖Wᵢ‖) · exp_M(Σ αᵢ log_M(uᵢ))
    (arXiv:2602.05787, eqs. 2 and 3). Each tensor is a W of its own, as in mergekit; the equations can be read
    of the whole model as one vector too.

    Example:
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

    def compute_coefficients(self, span: Span, block: Block) -> tuple[np.ndarray, str]:
        from emberge_merge.methods.spherical.angles import compute_mean_direction

        return compute_mean_direction(span, block.weights, steps=_STEPS[self.mode], tolerance=1e-10)


@dataclass(frozen=True, kw_only=True)
class Karcher(GramStrategy):
    """Find the point of the sphere that is nearest to all models' directions, at their mean length.

    M ← exp_M(Σ αᵢ log_M(uᵢ)) from the normalised mean until a step is shorter than `tol` (Karcher, 1977; for
    merging arXiv:2603.04972). The mean lies in the models' span, so all steps are computed on the models'
    inner products: about a hundred values, without further passes over the weights.

    Example:
        models: [./a, ./b, ./c]
        strategy: karcher
    """

    max_iter: Annotated[int, NumberRange(least=1, most=10**6)] = 100
    """Largest number of steps; mergekit's is 10."""
    tol: NonNegative = 1e-10
    """Length of a step, an angle in radians, below which the iteration ends; mergekit's is 1e-5."""

    base_policy = "forbidden"

    def compute_coefficients(self, span: Span, block: Block) -> tuple[np.ndarray, str]:
        from emberge_merge.methods.spherical.angles import compute_mean_direction

        return compute_mean_direction(span, block.weights, steps=self.max_iter, tolerance=self.tol)
