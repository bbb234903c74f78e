"""Drop delta elements at random, small ones more often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import BasePolicy, Block, MergeTransform, PerModel, Stats

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DropByRank(MergeTransform):
    """Keep an element with a probability that grows with its magnitude's rank in its row (DELLA).

    Rank r of m gives density - epsilon + 2 · epsilon · (r - 1) / (m - 1); a tensor of one dimension is one
    row, and a row of one element uses `density` (Deep et al., 2024, arXiv:2406.11617).
    """

    density: PerModel = PerModel(1.0, within=(0, 1))
    """Mean probability of being kept; from 1 nothing is dropped, at 0 everything is."""
    epsilon: PerModel = PerModel(0.15, within=(0, 0.5))
    """How far the smallest and the largest element of a row lie from `density`."""

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    def apply(self, block: Block, stats: Stats) -> Block:
        import torch

        deltas = block.deltas
        pairs = zip(block.options.density.tolist(), block.options.epsilon.tolist(), strict=True)
        kept = torch.stack(
            [keep_probability(d, *pair) for d, pair in zip(deltas, pairs, strict=True)]
        )
        keep = (block.uniform("drop_by_rank") < kept).to(deltas.dtype)
        return block.with_deltas(deltas * keep, kept=kept)


def keep_probability(delta: Tensor, density: float, epsilon: float) -> Tensor:
    """Each element's probability of being kept, shaped like `delta` [*rows].

    Raises:
        ValueError: when density ± epsilon leaves the open interval (0, 1).
    """
    import torch

    if density >= 1 or density <= 0:
        return torch.full_like(delta, float(density >= 1))
    if density - epsilon <= 0 or density + epsilon >= 1:
        raise ValueError(
            f"density {density:g} ± epsilon {epsilon:g} must stay between 0 and 1; lower epsilon"
        )
    rows = delta.abs().reshape(1, -1) if delta.dim() < 2 else delta.abs().flatten(1)
    size = rows.shape[1]
    if size < 2:
        return torch.full_like(delta, density)
    order = rows.argsort(dim=1, stable=True)
    share = torch.arange(size, dtype=delta.dtype, device=delta.device) / (size - 1)
    ranks = torch.empty_like(rows).scatter_(1, order, share.expand_as(rows))
    return ((density - epsilon) + 2 * epsilon * ranks).reshape(delta.shape)
