"""Model Stock: from the base towards the mean, by the angle between the models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Measures, MergeStrategy, Pass, Stats, WeightedSum

if TYPE_CHECKING:
    import numpy as np

_SINGULAR_VALUE = 1e-6


@dataclass(frozen=True, kw_only=True)
class ModelStock(MergeStrategy):
    """Interpolate from the base to the models' mean, further the more their changes agree (arXiv:2403.19522).

    W = t · mean(Wᵢ) + (1 - t) · W₀ with t = N c / (1 + (N - 1) c), where c is the mean cosine of all pairs of
    changes (Jang et al., 2024). Weights are not used. If one model of a pair did not change, the pair counts
    as orthogonal. If 1 + (N - 1) c is zero, t is 0.

    The artifact's `weights_by_layer` has each layer's t: the mean over the layer's elements.

    Example:
        strategy: model_stock
    """

    clamp: bool = True
    """Keep t within 0 and 1: where models disagree (c < 0) the formula leads away from them. Equation 9 of
    BOOM (arXiv:2602.05787) and mergekit have no bound."""

    arity = range(2, 1_000_000)
    base_policy = "required"
    weight_role = "unused"

    needs_torch = False
    passes = (Pass(),)

    def measure(self, block: Block, stats: Stats) -> Measures:
        return block.inner_products(deltas=True, differences=False)  # changes are far from parallel

    def conclude(self, block: Block, stats: Stats) -> Measures:
        ratio, count = self._compute_ratio(stats[-1]["products"]), len(block.models)
        return {"coefficients": [ratio / count] * count, "findings": {"mean of the models": ratio}}

    def formula(self, block: Block, stats: Stats) -> WeightedSum:
        return WeightedSum(stats[0]["coefficients"], of_deltas=True)

    def _compute_ratio(self, gram: np.ndarray) -> float:
        """Return t of a Gram matrix [n, n]; a pair without a direction counts as orthogonal."""
        import numpy as np

        count, norms = len(gram), np.sqrt(gram.diagonal())
        pairs = norms[:, None] * norms
        cosines = (gram / np.where(pairs > 0, pairs, 1.0)).clip(-1, 1)
        cosine = float(np.triu(cosines, 1).sum((-2, -1)) / (count * (count - 1) / 2))
        denominator = 1 + (count - 1) * cosine
        ratio = count * cosine / denominator if abs(denominator) >= _SINGULAR_VALUE else 0.0
        return min(max(ratio, 0.0), 1.0) if self.clamp else ratio
