"""Whole deltas where one model moved, their mean where several did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import BasePolicy, Block, Measures, MergeStrategy, PerTensor, Stats, WeightRole

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Ram(MergeStrategy):
    """Keep a delta whole where only its model moved, and average where several moved (RAM).

    A model counts at a place where |delta| > epsilon (arXiv:2601.13572, reinforced agent merging).
    """

    epsilon: PerTensor = PerTensor(1e-5)
    """Magnitude above which an element counts as moved; absolute."""

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    @property
    def weight_role(self) -> WeightRole:
        return "unused"

    def merge(self, block: Block, stats: Stats) -> Tensor:
        deltas, moved, count = counted(block)
        summed = (deltas * moved).sum(0)
        return block.add_delta(summed / count.clamp(min=1))


@dataclass(frozen=True, kw_only=True)
class RamPlus(Ram):
    """RAM whose unshared parts are strengthened by 1 + r · clip(shared / unshared, 0, alpha), per model.

    Shared and unshared count a model's moved places in the tensor (arXiv:2601.13572, RAM+).
    """

    r: float = 0.1
    """How strongly a model's overlap with others raises what is its own."""
    alpha: float = 0.2
    """Largest overlap that counts."""

    @property
    def passes(self) -> int:
        return 1

    def measure(self, block: Block, stats: Stats) -> Measures:
        _, moved, count = counted(block)
        moved = moved.flatten(1)
        unique = (count == 1).flatten()
        return {"unique": (moved * unique).sum(1).double(), "all": moved.sum(1).double()}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        deltas, moved, count = counted(block)
        unique, total = stats[0]["unique"], stats[0]["all"]
        overlap = (total - unique) / unique.clamp(min=1e-5)
        strength = (1 + self.r * overlap.clamp(0, self.alpha)).to(deltas.dtype)
        strength = strength.view(-1, *[1] * (deltas.dim() - 1))
        kept = deltas * moved
        alone = (kept * strength).sum(0) * (count == 1)
        shared = kept.sum(0) / count.clamp(min=1) * (count > 1)
        return block.add_delta(alone + shared)


def counted(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """(deltas [n, *rows], which count there [n, *rows], how many do [*rows]), as numbers."""
    deltas = block.deltas
    moved = (deltas.abs() > block.options.epsilon).to(deltas.dtype)
    return deltas, moved, moved.sum(0)
