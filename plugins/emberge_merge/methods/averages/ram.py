"""Whole deltas where one model moved, their mean where several did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Measures, MergeStrategy, NonNegative, PerTensor, Stats

if TYPE_CHECKING:
    from torch import Tensor

_LEAST = 1e-5


@dataclass(frozen=True, kw_only=True)
class Ram(MergeStrategy):
    """Keep an element's delta whole if only one model moved it; average if several did (RAM).

    A model has moved an element if |delta| > epsilon (arXiv:2601.13572, reinforced agent merging).

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: ram
    """

    epsilon: PerTensor = PerTensor(1e-5)
    """Magnitude above which an element counts as moved; absolute."""

    base_policy = "required"
    weight_role = "unused"

    def merge(self, block: Block, stats: Stats) -> Tensor:
        moved_deltas, count = moved(block)
        return block.add_delta(moved_deltas.sum(0).div_(count.clamp_(min=1)))


@dataclass(frozen=True, kw_only=True)
class RamPlus(Ram):
    """RAM that multiplies a model's unshared changes by 1 + r · clip(shared / unshared, 0, alpha).

    `shared` counts the elements that the model and others moved, `unshared` those that only it moved
    (arXiv:2601.13572, RAM+).

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: {ramplus_tl: {r: 0.1, alpha: 0.2}}
    """

    r: NonNegative = 0.1
    """Factor on the ratio shared / unshared, which amplifies the model's unshared changes."""
    alpha: NonNegative = 0.2
    """Largest ratio shared / unshared that counts."""

    passes = 1

    def measure(self, block: Block, stats: Stats) -> Measures:
        moved_deltas, count = moved(block)
        places = moved_deltas.sign().abs_()
        moved_counts = _sum_by_model(places)
        unique = _sum_by_model(places.mul_((count == 1).to(places)))
        return {"all": moved_counts.double(), "unique": unique.double()}

    def conclude(self, block: Block, stats: Stats) -> Measures:
        unique = stats[-1]["unique"]
        # Without unshared places there is no strength; the least divisor is mergekit's.
        overlap = (stats[-1]["all"] - unique) / unique.clamp(min=_LEAST)
        return {"strength": 1 + self.r * overlap.clamp(0, self.alpha)}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        moved_deltas, count = moved(block)
        strength: Tensor = stats[0]["strength"]
        is_unshared = (count == 1).to(moved_deltas)
        merged = moved_deltas.sum(0).div_(count.clamp_(min=1)).mul_(1 - is_unshared)
        factors = strength.to(moved_deltas).view(-1, *[1] * (moved_deltas.dim() - 1))
        strengthened = moved_deltas.mul_(factors).sum(0)
        return block.add_delta(merged.add_(strengthened.mul_(is_unshared)))


def moved(block: Block) -> tuple[Tensor, Tensor]:
    """Return (changes [models, *rows], zeroed up to epsilon; number of models that moved each [*rows])."""
    import torch

    moved_deltas = torch.nn.functional.hardshrink(block.deltas, block.options.epsilon)
    return moved_deltas, moved_deltas.sign().abs_().sum(0)


def _sum_by_model(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1).sum(1)
