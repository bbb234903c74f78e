"""Keeping the largest changes, or those of middle magnitude."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emberge import Block, PerModel, Stats

from emberge_merge.methods.sparse.ranking import Ranking


@dataclass(frozen=True, kw_only=True)
class Trim(Ranking):
    """Keep the share `density` of each tensor's largest changes and undo the others (arXiv:2306.01708).

    Of n changes, exactly k = max(1, int(density · n)) are kept; among equal changes, the first in the tensor.
    A density of 1 keeps all, 0 none (Yadav et al., 2023).

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
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
        from emberge_merge.methods.sparse.limits import KeepLargest

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
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: [{trim_outliers: {density: 0.9, gamma: 0.01}}, task_arithmetic]
    """

    density: PerModel = PerModel(1.0, within=(0, 1))
    """Share of each model's changes that stay."""
    gamma: PerModel = PerModel(0.01, within=(0, 1))
    """Share of each model's changes that are undone because they are the largest."""

    base_policy = "required"
    weight_role = "unused"
    needs_torch = False

    limits = 2

    def count_kept(self, block: Block, total: int, nonzero: Sequence[int]) -> Sequence[int]:
        pairs = zip(block.options.density.tolist(), block.options.gamma.tolist(), strict=True)
        return [bound for pair in pairs for bound in compute_bounds(*pair, total)]

    def apply(self, block: Block, stats: Stats) -> Block:
        from emberge_merge.methods.sparse.limits import KeepLargest

        limits = [cut.limit for cut in stats[-1]["cuts"]]
        return block.record(KeepLargest(limits[::2])).record(KeepLargest(limits[1::2], undo=True))


def compute_bounds(density: float, gamma: float, total: int) -> tuple[int, int]:
    """Return (number of largest changes to rank, number of these to undo as outliers)."""
    if density >= 1:
        return total, 0
    target = count_share(density, total)
    upper = total - max(0, total - target - int(gamma * total))
    return upper, upper - target
