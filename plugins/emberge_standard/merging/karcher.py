"""The Karcher mean of any number of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import BasePolicy, Block, Measures, MergeStrategy, Stats

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Karcher(MergeStrategy):
    """Find the point of the sphere that is nearest to all models' directions, at their mean length.

    M ← exp_M(Σ αᵢ log_M(uᵢ)) from the normalised mean until a step is shorter than `tol` (Karcher, 1977; for
    merging arXiv:2603.04972). It needs a hundred numbers, not a hundred passes: the mean lies in the
    models' span, so all steps are taken on their inner products.
    """

    max_iter: int = 100
    tol: float = 1e-10

    @property
    def base_policy(self) -> BasePolicy:
        return "forbidden"

    @property
    def passes(self) -> int:
        return 1

    def measure(self, block: Block, stats: Stats) -> Measures:
        from emberge_standard.merging.angles import difference_gram

        return {"gram": difference_gram(block, block.tensors)}

    def conclude(self, block: Block, stats: Stats) -> Measures:
        from emberge_standard.merging.angles import Directions

        directions = Directions(stats[-1]["gram"], block.weights)
        coefficients, warning = directions.mean(steps=self.max_iter, tolerance=self.tol)
        return {"coefficients": coefficients, "warning": warning}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return block.combine(stats[0]["coefficients"])
