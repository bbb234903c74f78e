"""Rescaling of deltas after earlier links dropped elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import Block, Measures, MergeTransform, Pass, Stats

from emberge_merge.methods.sparse.delta_sums import MagnitudeSums, SumsBeforeAndAfter

if TYPE_CHECKING:
    from emberge.numerics import KernelIntegers
    from torch import Tensor

_TINY_SUM = 1e-7


@dataclass(frozen=True, kw_only=True)
class Rescale(MergeTransform):
    """Scale each delta after elements were dropped, so that dropping does not shrink it.

    `l1` restores the sum of magnitudes before the first link that dropped anything, tensor by tensor (as
    mergekit does); `inverse_density` divides by the probability of being kept, which leaves the expected
    delta unchanged (Yu et al., 2023, arXiv:2311.03099); `none` does nothing.

    Example:
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
    def passes(self) -> Sequence[Pass]:
        return (Pass(),) if self.rescale_mode == "l1" else ()

    def measure(self, block: Block, stats: Stats) -> Measures:
        if block.rows.replaced_deltas is None:
            sums_before, sums_after = block.evaluate(SumsBeforeAndAfter())
        else:
            original = block.replace(rows=block.rows.original)
            sums_before, sums_after = (one.evaluate(MagnitudeSums()) for one in (original, block))
        return {"before": sums_before, "after": sums_after}

    def conclude(self, block: Block, stats: Stats) -> Measures:
        sums_before, sums_after = stats[-1]["before"], stats[-1]["after"]
        is_zero = (sums_before < _TINY_SUM) | (sums_after < _TINY_SUM)
        factor = sums_before / sums_after.clip(min=_TINY_SUM)
        factor[is_zero] = 1.0
        return {"factor": factor}

    def apply(self, block: Block, stats: Stats) -> Block:
        if self.rescale_mode == "l1":
            return block.record(ScaleDeltas(stats[0]["factor"].tolist()))
        if self.rescale_mode == "inverse_density" and block.keep_probability is not None:
            return block.record(DivideDeltas(block.keep_probability().clamp(min=_TINY_SUM)))
        return block


@dataclass(frozen=True, slots=True)
class ScaleDeltas:
    """A change that multiplies each model's deltas by its factor."""

    factors: Sequence[float]

    kernel = "scale"

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        return deltas.mul_(deltas.new_tensor(self.factors).view(-1, *[1] * (deltas.dim() - 1)))

    def list_kernel_arguments(self) -> list[tuple[float, KernelIntegers]]:
        return [(factor, (0, 0, 0)) for factor in self.factors]


@dataclass(frozen=True, slots=True, eq=False)
class DivideDeltas:
    """A change that divides the deltas by `divisors`: one for each model, or one for each delta."""

    divisors: Tensor

    @property
    def kernel(self) -> str:
        return "divide" if self.divisors.numel() == len(self.divisors) else ""

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        return deltas.div_(self.divisors.to(deltas))

    def list_kernel_arguments(self) -> list[tuple[float, KernelIntegers]]:
        return [(divisor, (0, 0, 0)) for divisor in self.divisors.flatten().tolist()]
