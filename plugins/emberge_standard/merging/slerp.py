"""Spherical interpolation of two models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import BasePolicy, Block, Measures, MergeStrategy, PerTensor, Stats, WeightRole

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Slerp(MergeStrategy):
    """Walk the great circle between two models (Shoemake, 1985).

    W = sin((1-t)θ)/sin θ · A + sin(tθ)/sin θ · B, θ the angle between A and B; t = 0 is the first model.
    Above a cosine of `linear_threshold` the way is straight: mergekit has 0.9995 there, which makes most
    merges of siblings linear; here the angle is exact and none is set.
    """

    t: PerTensor = PerTensor(0.5, within=(0, 1))
    linear_threshold: float | None = None

    @property
    def arity(self) -> range:
        return range(2, 3)

    @property
    def base_policy(self) -> BasePolicy:
        return "forbidden"

    @property
    def weight_role(self) -> WeightRole:
        return "unused"

    @property
    def passes(self) -> int:
        return 1

    def measure(self, block: Block, stats: Stats) -> Measures:
        from emberge_standard.merging.angles import difference_gram

        return {"gram": difference_gram(block, block.tensors)}

    def conclude(self, block: Block, stats: Stats) -> Measures:
        from emberge_standard.merging.angles import slerp_coefficients

        gram = stats[-1]["gram"]
        sums = gram[[0, 0, 1], [0, 1, 1]]
        first, second = slerp_coefficients(sums, block.options.t, self.linear_threshold)
        return {"coefficients": [float(first), float(second)]}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return block.combine(stats[0]["coefficients"])
