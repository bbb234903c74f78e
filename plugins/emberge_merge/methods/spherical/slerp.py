"""Spherical interpolation of two models, of their changes, or of any number in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Cosine, PerTensor

from emberge_merge.methods.spherical.mean_directions import GramStrategy

if TYPE_CHECKING:
    import numpy as np

    from emberge_merge.methods.spherical.angles import Span


@dataclass(frozen=True, kw_only=True)
class Slerp(GramStrategy):
    """Interpolate two models on the great circle through them (Shoemake, 1985).

    W = sin((1-t)θ)/sin θ · A + sin(tθ)/sin θ · B, with θ the angle between A and B. Small angles are exact.
    mergekit interpolates linearly above a cosine of 0.9995, so that most of its merges of models with one
    base are linear.

    Example:
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

    def compute_coefficients(self, span: Span, block: Block) -> tuple[np.ndarray, str]:
        from emberge_merge.methods.spherical.angles import compute_slerp

        return compute_slerp(span, block.options.t, self.linear_threshold)


@dataclass(frozen=True, kw_only=True)
class Nuslerp(GramStrategy):
    """Interpolate two models on the great circle; their weights set the second model's share (NuSLERP).

    t = α₂ / (α₁ + α₂), or one half if the weights sum to zero. With a base, the models' changes are
    interpolated and the result is added to the base.

    Example:
        models: [{model: ./a, weight: 0.7}, {model: ./b, weight: 0.3}]
        strategy: nuslerp
    """

    arity = range(2, 3)
    weight_role = "unused"  # not divided by their sum: a sum of zero is the middle

    def of_deltas(self, block: Block) -> bool:
        return block.has_base

    def compute_coefficients(self, span: Span, block: Block) -> tuple[np.ndarray, str]:
        from emberge_merge.methods.spherical.angles import compute_slerp

        first, second = block.weights.tolist()
        t = 0.5 if abs(first + second) < 1e-6 else second / (first + second)
        return compute_slerp(span, t)


@dataclass(frozen=True, kw_only=True)
class SequentialSlerp(GramStrategy):
    """Move from the first model towards each following model in turn, in the order of the list.

    The step towards model j is the share wⱼ / (w₁ + … + wⱼ) of the great circle: 1/j of it with equal
    weights. With `weights: size`, it is the share of model j's examples among those of the first j models
    (BOOM's SLERP of more than two, arXiv:2602.05787). Another order gives another model; the paper takes
    tasks as sts, clustering, classification, retrieval. `multi_slerp` and `karcher` do not depend on the
    order.

    Example:
        models: [./a, ./b, ./c]
        strategy: sequential_slerp
    """

    arity = range(2, 1_000_000)
    base_policy = "forbidden"

    def compute_coefficients(self, span: Span, block: Block) -> tuple[np.ndarray, str]:
        from emberge_merge.methods.spherical.angles import chain_slerps

        return chain_slerps(span, block.weights)
