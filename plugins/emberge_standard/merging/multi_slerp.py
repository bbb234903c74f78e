"""Spherical mean of any number of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import BasePolicy, Block, Measures, MergeStrategy, Stats

if TYPE_CHECKING:
    from torch import Tensor

_STEPS = {"projected": 0, "log": 1, "karcher": 100}


@dataclass(frozen=True, kw_only=True)
class MultiSlerp(MergeStrategy):
    """Average the models' directions on the sphere, at their mean length (BOOM's Multi-SLERP).

    With uᵢ = Wᵢ/‖Wᵢ‖ and M the normalised Σ αᵢ uᵢ, the result is (Σ αᵢ ‖Wᵢ‖) · exp_M(Σ αᵢ log_M(uᵢ)).
    `mode: log` is that formula; `projected` is (Σ αᵢ ‖Wᵢ‖) · M, which mergekit's multislerp amounts to, as
    its projections onto the tangent space sum to zero; `karcher` repeats the step to convergence.
    `space: deltas` works on the changes to the base, a different and stronger operator.
    """

    mode: Literal["log", "projected", "karcher"] = "log"
    space: Literal["weights", "deltas"] = "weights"

    @property
    def base_policy(self) -> BasePolicy:
        return "required" if self.space == "deltas" else "forbidden"

    @property
    def passes(self) -> int:
        return 1

    def measure(self, block: Block, stats: Stats) -> Measures:
        from emberge_standard.merging.angles import difference_gram

        return {"gram": difference_gram(block, self._vectors(block))}

    def conclude(self, block: Block, stats: Stats) -> Measures:
        from emberge_standard.merging.angles import Directions

        directions = Directions(stats[-1]["gram"], block.weights)
        coefficients, warning = directions.mean(steps=_STEPS[self.mode], tolerance=1e-10)
        return {"coefficients": coefficients, "warning": warning}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        merged = block.combine(stats[0]["coefficients"], self._vectors(block))
        if self.space == "weights" or block.base is None:
            return merged
        return merged.add_(block.base)

    def _vectors(self, block: Block) -> Tensor:
        return block.deltas if self.space == "deltas" else block.tensors
