"""Spherical interpolation of any number of models, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Measures

from emberge_merge.methods.spherical.gram import GramStrategy

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class SequentialSlerp(GramStrategy):
    """Move from the first model towards each following model in turn, in the order of the list.

    The step towards model j is the share wⱼ / (w₁ + … + wⱼ) of the great circle: 1/j of it with equal
    weights. With `weights: size`, it is the share of model j's examples among those of the first j models
    (BOOM's SLERP of more than two, arXiv:2602.05787). Another order gives another model; the paper takes
    tasks as sts, clustering, classification, retrieval. `multi_slerp` and `karcher` do not depend on the
    order.

    Example:
        merged:
          merge:
            models: [./a, ./b, ./c]
            strategy: sequential_slerp
    """

    arity = range(2, 1_000_000)
    base_policy = "forbidden"

    def coefficients(self, grams: Measures, block: Block) -> tuple[np.ndarray, str]:
        from emberge_merge.methods.spherical.angles import Span, slerp_in_turn

        span = Span.of(grams["products"], grams["differences"])
        return slerp_in_turn(span, block.weights)
