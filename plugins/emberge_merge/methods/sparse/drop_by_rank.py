"""Drop delta elements at random, small ones more often."""

from __future__ import annotations

import math
from dataclasses import dataclass

from emberge import Block, MergeTransform, PerModel, Stats


@dataclass(frozen=True, kw_only=True)
class DropByRank(MergeTransform):
    """Keep an element with a probability that grows with its magnitude's rank in its row (DELLA).

    Rank r of m gives density - epsilon + 2 · epsilon · (r - 1) / (m - 1); a tensor of one dimension is one
    row, and a row of one element uses `density` (Deep et al., 2024, arXiv:2406.11617).

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: [{drop_by_rank: {density: 0.5, epsilon: 0.1}}, rescale, sign_consensus]
    """

    density: PerModel = PerModel(1.0, within=(0, 1))
    """Mean probability that an element is kept; at 1 nothing is dropped, at 0 everything."""
    epsilon: PerModel = PerModel(0.15, within=(0, 0.5))
    """Distance from `density` of the probabilities of a row's smallest and largest element."""

    revision = 2
    base_policy = "required"
    weight_role = "unused"
    needs_torch = False

    def apply(self, block: Block, stats: Stats) -> Block:
        width = math.prod(block.shape[1:] if len(block.shape) > 1 else block.shape)
        pairs = zip(block.options.density.tolist(), block.options.epsilon.tolist(), strict=True)
        return block.drop_ranked([chances(*pair, width) for pair in pairs], "drop_by_rank")


def chances(density: float, epsilon: float, width: int) -> tuple[float, float]:
    """Return the probability that a row's smallest element is kept, and its increase with each further rank.

    Raises:
        ValueError: if density ± epsilon leaves the open interval (0, 1).
    """
    if density >= 1 or density <= 0:
        return float(density >= 1), 0.0
    if density - epsilon <= 0 or density + epsilon >= 1:
        raise ValueError(
            f"density {density:g} ± epsilon {epsilon:g} must stay between 0 and 1; lower epsilon"
        )
    if width < 2:
        return density, 0.0
    return density - epsilon, 2 * epsilon / (width - 1)
