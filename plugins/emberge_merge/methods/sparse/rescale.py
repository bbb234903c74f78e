"""Make up for what earlier links dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import Block, Measures, MergeTransform, Stats

if TYPE_CHECKING:
    from torch import Tensor

_TINY = 1e-7


@dataclass(frozen=True, kw_only=True)
class Rescale(MergeTransform):
    """Scale what is left of each delta so that dropping does not shrink it.

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
    """The quantity that is restored."""

    base_policy = "required"
    weight_role = "unused"

    @property
    def passes(self) -> int:
        return 1 if self.rescale_mode == "l1" else 0

    def measure(self, block: Block, stats: Stats) -> Measures:
        import torch
        from emberge import pooled_like

        from emberge_merge.methods.shapes import by_model

        def magnitudes(deltas: Tensor) -> Tensor:
            rows = by_model(deltas)
            alone = pooled_like(rows[0])
            return torch.stack([torch.abs(row, out=alone).sum() for row in rows]).double()

        return {"before": magnitudes(block.original), "after": magnitudes(block.deltas)}

    def conclude(self, block: Block, stats: Stats) -> Measures:
        before, after = stats[-1]["before"], stats[-1]["after"]
        lost = (before < _TINY) | (after < _TINY)
        return {"factor": (before / after.clamp(min=_TINY)).masked_fill(lost, 1.0)}

    def apply(self, block: Block, stats: Stats) -> Block:
        import torch
        from emberge import pooled_like

        from emberge_merge.methods.shapes import spread

        if self.rescale_mode == "l1":
            factor = spread(stats[0]["factor"], block.like)
            return block.with_deltas(torch.mul(block.deltas, factor, out=pooled_like(block.like)))
        if self.rescale_mode == "inverse_density" and block.kept is not None:
            density = block.kept.clamp(min=_TINY)
            return block.with_deltas(torch.div(block.deltas, density, out=pooled_like(block.like)))
        return block
