"""A merge strategy: a mean of models that does not shrink."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Measures, MergeStrategy, Pass, PerTensor, Stats, WeightedSum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class KeepNorm(MergeStrategy):
    """The weighted mean of the models, stretched to the weighted mean of their norms.

    It asks the block for sums, so that emberge may compute them from the numbers as they are stored.
    """

    strength: PerTensor = PerTensor(1.0, within=(0, 1))
    """Degree of stretching: 0 is the plain mean, 1 keeps the whole norm."""
    passes = (Pass(),)
    needs_torch = False  # as all numbers come from the block's methods

    def measure(self, block: Block, stats: Stats) -> Measures:
        # emberge adds up the blocks of a tensor.
        return block.inner_products(deltas=False, differences=False)

    def formula(self, block: Block, stats: Stats) -> WeightedSum:
        return WeightedSum(self.coefficients(block, stats))

    def coefficients(self, block: Block, stats: Stats) -> list[float]:
        """Return each model's factor."""
        gram, weights = stats[0]["products"], block.weights / block.weights.sum()
        wanted = weights @ gram.diagonal() ** 0.5
        norm = max(0.0, weights @ gram @ weights) ** 0.5
        stretch = float(wanted / norm) if norm > 1e-12 else 1.0
        return [float(weight * stretch**block.options.strength) for weight in weights]


@dataclass(frozen=True, kw_only=True)
class KeepNormPlain(KeepNorm):
    """The same as `keep_norm`, written with the models' tensors alone."""

    needs_torch = True

    def measure(self, block: Block, stats: Stats) -> Measures:
        flat = block.tensors.reshape(len(block.models), -1).double()
        return {"products": (flat @ flat.mT).cpu().numpy()}

    def merge(self, block: Block, stats: Stats) -> "Tensor":
        first, *others = self.coefficients(block, stats)
        merged: Tensor = block.tensors[0] * first
        for factor, tensor in zip(others, block.tensors[1:], strict=True):
            merged += tensor * factor  # in the order of the models, whatever the block
        return merged
