"""A merge strategy: a mean of models that does not shrink."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Measures, MergeStrategy, PerTensor, Stats

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class KeepNorm(MergeStrategy):
    """The weighted mean of the models, stretched to the weighted mean of their norms."""

    strength: PerTensor = PerTensor(1.0, within=(0, 1))
    """Degree of stretching: 0 is the plain mean, 1 keeps the whole norm."""
    passes = 1

    def measure(self, block: Block, stats: Stats) -> Measures:
        return {"gram": block.gram(block.tensors)}  # emberge adds up the blocks of a tensor

    def merge(self, block: Block, stats: Stats) -> "Tensor":
        gram, weights = stats[0]["gram"], block.weights / block.weights.sum()
        wanted = weights @ gram.diagonal().sqrt()
        norm = (weights @ gram @ weights).clamp(min=0).sqrt()
        stretch = float(wanted / norm) if norm > 1e-12 else 1.0
        return block.combine(weights * stretch**block.options.strength)
