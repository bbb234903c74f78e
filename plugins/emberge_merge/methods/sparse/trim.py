"""Keeping the largest changes, or those of middle magnitude.

The passes are those of the base class `Ranking`. A sample of the tensor brackets each limit, and counts in
the bracket find the limit: the smallest magnitude among the values to keep, whose number `count_kept` gives.
`stats[-1]["cuts"]` then has a `Cut` for each limit, model by model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, PerModel, Stats

from emberge_merge.methods.sparse.ranking import Ranking

if TYPE_CHECKING:
    from emberge.numerics import KernelIntegers
    from torch import Tensor

    from emberge_merge.methods.sparse.cut import Limit


@dataclass(frozen=True, kw_only=True)
class Trim(Ranking):
    """Keep the share `density` of each tensor's largest changes and undo the others (arXiv:2306.01708).

    Of n changes, exactly k = max(1, int(density · n)) are kept; among equal changes, the first in the tensor.
    A density of 1 keeps all, 0 none (Yadav et al., 2023).

    Example:
        strategy: [{trim: {density: 0.2}}, sign_consensus]
    """

    density: PerModel = PerModel(0.5, within=(0, 1))
    """Share of each model's changes that stay."""

    base_policy = "required"
    weight_role = "unused"
    needs_torch = False

    def count_kept(self, block: Block, total: int, nonzero: Sequence[int]) -> Sequence[int]:
        return [count_share(share, total) for share in block.options.density.tolist()]

    def apply(self, block: Block, stats: Stats) -> Block:
        return block.record(KeepLargest([cut.limit for cut in stats[-1]["cuts"]]))


def count_share(share: float, total: int) -> int:
    """Return the number of values in a share of `total`: at least one, unless the share is zero."""
    return max(1, int(share * total)) if share > 0 else 0


@dataclass(frozen=True, kw_only=True)
class TrimOutliers(Ranking):
    """Undo each tensor's largest changes, then its smallest until the share `density` is left (breadcrumbs).

    Of n changes, the int(gamma · n) largest are undone, and the int(density · n) largest of the rest are
    kept. If too few would be left, fewer of the largest are undone. A density of 1 keeps all (Davari and
    Belilovsky, 2023, arXiv:2312.06795).

    Example:
        strategy: [{trim_outliers: {density: 0.9, gamma: 0.01}}, task_arithmetic]
    """

    density: PerModel = PerModel(1.0, within=(0, 1))
    """Share of each model's changes that stay."""
    gamma: PerModel = PerModel(0.01, within=(0, 1))
    """Share of each model's changes that are undone because they are the largest."""

    base_policy = "required"
    weight_role = "unused"
    needs_torch = False

    limits_per_model = 2

    def count_kept(self, block: Block, total: int, nonzero: Sequence[int]) -> Sequence[int]:
        pairs = zip(block.options.density.tolist(), block.options.gamma.tolist(), strict=True)
        return [bound for pair in pairs for bound in compute_bounds(*pair, total)]

    def apply(self, block: Block, stats: Stats) -> Block:
        limits = [cut.limit for cut in stats[-1]["cuts"]]
        return block.record(KeepLargest(limits[::2])).record(KeepLargest(limits[1::2], undo=True))


def compute_bounds(density: float, gamma: float, total: int) -> tuple[int, int]:
    """Return (number of largest changes to rank, number of these to undo as outliers)."""
    if density >= 1:
        return total, 0
    target = count_share(density, total)
    upper = total - max(0, total - target - int(gamma * total))
    return upper, upper - target


@dataclass(frozen=True, slots=True)
class KeepLargest:
    """A change that keeps each model's values at or above its limit or, with `undo`, those below it."""

    limits: Sequence[Limit]
    undo: bool = False

    @property
    def kernel(self) -> str:
        return "undo" if self.undo else "keep"

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        from emberge.numerics import take_tensor_like

        flat = deltas.view(len(deltas), -1)
        largest = take_tensor_like(flat[0]) if self.undo else None
        for limit, values in zip(self.limits, flat, strict=True):
            limit.keep(values, values if largest is None else largest, start)
            if largest is not None:
                values.sub_(largest)
        return deltas

    def list_kernel_arguments(self) -> list[tuple[float, KernelIntegers]]:
        return [(0.0, limit.as_kernel_integers()) for limit in self.limits]
