"""Model Stock: from the base towards the mean, by the angle between the models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Measures, Stats

from emberge_merge.methods.spherical.gram import GramStrategy

if TYPE_CHECKING:
    import numpy as np

_SINGULAR = 1e-6


@dataclass(frozen=True, kw_only=True)
class ModelStock(GramStrategy):
    """Interpolate from the base to the models' mean, further the more their changes agree (arXiv:2403.19522).

    W = t · mean(Wᵢ) + (1 - t) · W₀ with t = N c / (1 + (N - 1) c), where c is the mean cosine of all pairs of
    changes (Jang et al., 2024). Weights are not used. If one model of a pair did not change, the pair counts
    as orthogonal. If 1 + (N - 1) c is zero, t is 0.

    The artifact's `weights_by_layer` has each layer's t: the mean over the layer's elements.

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: model_stock
    """

    clamp: bool = True
    """Keep t within 0 and 1: where models disagree (c < 0) the formula leads away from them. Equation 9 of
    BOOM (arXiv:2602.05787) and mergekit have no bound."""

    arity = range(2, 1_000_000)
    base_policy = "required"
    weight_role = "unused"

    def of_deltas(self, block: Block) -> bool:
        return True

    @property
    def near(self) -> bool:
        return False  # changes are far from parallel

    def coefficients(self, grams: Measures, block: Block) -> tuple[np.ndarray, str]:
        count = len(block.models)
        shares = self._compute_ratio(grams["products"])[..., None] / count
        return shares.repeat(count, axis=-1), ""

    def conclude(self, block: Block, stats: Stats) -> Measures:
        ratio = float(self._compute_ratio(stats[-1]["products"]).mean())
        return {**super().conclude(block, stats), "findings": {"mean of the models": ratio}}

    def _compute_ratio(self, gram: np.ndarray) -> np.ndarray:
        """Return t of each Gram matrix [..., n, n]; a pair without a direction counts as orthogonal."""
        import numpy as np

        count = gram.shape[-1]
        norms = np.sqrt(gram.diagonal(axis1=-2, axis2=-1))
        pairs = norms[..., :, None] * norms[..., None, :]
        cosines = gram / np.where(pairs > 0, pairs, 1.0)
        total = np.triu(cosines.clip(-1, 1), 1).sum((-2, -1))
        cosine = total / (count * (count - 1) / 2)
        denominator = 1 + (count - 1) * cosine
        sound = np.abs(denominator) >= _SINGULAR
        ratio = np.where(sound, count * cosine / np.where(sound, denominator, 1.0), 0.0)
        return ratio.clip(0, 1) if self.clamp else ratio
