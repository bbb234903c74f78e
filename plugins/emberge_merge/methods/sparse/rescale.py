"""Rescaling of deltas after earlier links dropped elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emberge import Block, Measures, MergeTransform, Stats

_TINY = 1e-7


@dataclass(frozen=True, kw_only=True)
class Rescale(MergeTransform):
    """Scale each delta after elements were dropped, so that dropping does not shrink it.

    `l1` restores the sum of magnitudes before the first link that dropped anything, tensor by tensor (as
    mergekit does); `inverse_density` divides by the probability of being kept, which leaves the expected
    delta unchanged (Yu et al., 2023, arXiv:2311.03099); `none` does nothing.

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: [{drop: {density: 0.5}}, {rescale: {rescale_mode: inverse_density}}, task_arithmetic]
    """

    rescale_mode: Literal["l1", "inverse_density", "none"] = "l1"
    """Quantity that is restored."""

    base_policy = "required"
    weight_role = "unused"

    @property
    def needs_torch(self) -> bool:
        return self.rescale_mode == "inverse_density"

    @property
    def passes(self) -> int:
        return 1 if self.rescale_mode == "l1" else 0

    def measure(self, block: Block, stats: Stats) -> Measures:
        sums_before, sums_after = block.delta_sums_before_and_after()
        return {"before": sums_before, "after": sums_after}

    def conclude(self, block: Block, stats: Stats) -> Measures:
        sums_before, sums_after = stats[-1]["before"], stats[-1]["after"]
        is_zero = (sums_before < _TINY) | (sums_after < _TINY)
        factor = sums_before / sums_after.clip(min=_TINY)
        factor[is_zero] = 1.0
        return {"factor": factor}

    def apply(self, block: Block, stats: Stats) -> Block:
        if self.rescale_mode == "l1":
            return block.scale_deltas(stats[0]["factor"])
        if self.rescale_mode == "inverse_density" and block.keep_probability is not None:
            density = block.keep_probability.clamp(min=_TINY)
            if density.numel() == len(block.models):
                return block.divide_deltas(density.flatten())
            return block.with_deltas(block.copy_deltas().div_(density))
        return block
