"""Keep only where all models move the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, MergeTransform, Stats

if TYPE_CHECKING:
    from emberge.numerics import KernelIntegers
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Unanimous(MergeTransform):
    """Zero an element in all deltas unless all have the same sign; a zero agrees with no sign.

    The sign rule that BOOM's text prints for SCE (arXiv:2602.05787, eqs. 7 and 8).

    Example:
        strategy: [unanimous, task_arithmetic]
    """

    base_policy = "required"
    weight_role = "unused"

    def apply(self, block: Block, stats: Stats) -> Block:
        return block.record(KeepUnanimous())


@dataclass(frozen=True, slots=True)
class KeepUnanimous:
    """A change that keeps the elements that have the same sign in all deltas."""

    kernel = ""

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        # All signs equal is a sum of as many as there are models; the mask is of ones and zeros.
        agree = deltas.sign().sum(0).abs_().sub_(len(deltas) - 1).clamp_(min=0)
        return deltas.mul_(agree)

    def list_kernel_arguments(self) -> list[tuple[float, KernelIntegers]]:
        return []
