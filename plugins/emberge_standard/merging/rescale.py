"""Make up for what earlier links dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import BasePolicy, Block, Measures, MergeTransform, Stats

if TYPE_CHECKING:
    from torch import Tensor

_TINY = 1e-7


@dataclass(frozen=True, kw_only=True)
class Rescale(MergeTransform):
    """Scale what is left of each delta so that dropping does not shrink it.

    `l1` restores the sum of magnitudes before the first link that dropped anything, tensor by tensor (as
    mergekit does); `inverse_density` divides by the probability of being kept, which leaves the expected
    delta unchanged (Yu et al., 2023, arXiv:2311.03099); `none` does nothing.
    """

    rescale_mode: Literal["l1", "inverse_density", "none"] = "l1"
    """What is restored."""

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    @property
    def passes(self) -> int:
        return 1 if self.rescale_mode == "l1" else 0

    def measure(self, block: Block, stats: Stats) -> Measures:
        def magnitudes(deltas: Tensor) -> Tensor:
            return deltas.abs().flatten(1).sum(1).double()

        after = block.deltas
        before = after if block.original is None else block.original
        return {"before": magnitudes(before), "after": magnitudes(after)}

    def apply(self, block: Block, stats: Stats) -> Block:
        if self.rescale_mode == "none":
            return block
        deltas = block.deltas
        if self.rescale_mode == "inverse_density":
            if block.kept is None:
                return block
            return block.with_deltas(deltas / block.kept.clamp(min=_TINY).to(deltas.dtype))
        before, after = stats[0]["before"], stats[0]["after"]
        lost = (before < _TINY) | (after < _TINY)
        factor = (before / after).masked_fill(lost, 1.0).to(deltas.dtype)
        return block.with_deltas(deltas * factor.view(-1, *[1] * (deltas.dim() - 1)))
