"""Combinations of models by coefficients from their Gram matrix: spherical means and Model Stock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Measures, MergeStrategy, Pass, Stats, WeightedSum

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class GramStrategy(MergeStrategy):
    """Strategy whose result is a combination of a tensor's vectors, with coefficients from inner products.

    Subclasses choose the vectors, and compute the coefficients from the inner products.
    """

    needs_torch = False
    passes = (Pass(),)

    def of_deltas(self, block: Block) -> bool:
        """Return whether changes are combined and added to the base; by default the models are combined."""
        return False

    @property
    def near(self) -> bool:
        """True if vectors may be nearly parallel, so that differences to the first are measured too."""
        return True

    def coefficients(self, grams: Measures, block: Block) -> tuple[np.ndarray, str]:
        """Return float64 coefficients [models] for Gram matrices [models, models], and a warning or "".

        `grams["products"]` has the products of the vectors. `grams["differences"]`, if `near` is true, has
        the products of the first vector and of the differences of the others to it: models that were tuned
        from one base are nearly parallel, and products of the vectors alone would lose the angle between
        them.
        """
        raise NotImplementedError

    def measure(self, block: Block, stats: Stats) -> Measures:
        return block.inner_products(deltas=self.of_deltas(block), differences=self.near)

    def conclude(self, block: Block, stats: Stats) -> Measures:
        coefficients, warning = self.coefficients(stats[-1], block)
        return {"coefficients": coefficients, "warning": warning}

    def formula(self, block: Block, stats: Stats) -> WeightedSum:
        return WeightedSum(stats[0]["coefficients"], of_deltas=self.of_deltas(block))
