"""Keeping the largest changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emberge import Block, PerModel, Stats

from emberge_merge.methods.ranking import Ranking


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

    def keeps(self, block: Block, total: int, nonzero: Sequence[int]) -> Sequence[int]:
        return [keep_count(share, total) for share in block.options.density.tolist()]

    def apply(self, block: Block, stats: Stats) -> Block:
        from emberge_merge.methods.limits import KeepLargest

        return block.record(KeepLargest([cut.limit for cut in stats[-1]["cuts"]]))


def keep_count(share: float, total: int) -> int:
    """Return the number of `total` values that a density keeps: at least one unless the density is zero."""
    return max(1, int(share * total)) if share > 0 else 0
