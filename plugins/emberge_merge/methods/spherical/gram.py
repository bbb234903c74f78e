"""Combinations of models by coefficients from the angles between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Measures, MergeStrategy, Pass, Stats, WeightedSum

if TYPE_CHECKING:
    import numpy as np

    from emberge_merge.methods.spherical.angles import Span


@dataclass(frozen=True, kw_only=True)
class GramStrategy(MergeStrategy):
    """Strategy whose result is a combination of a tensor's vectors, with coefficients from inner products.

    Models that were tuned from one base are nearly parallel, and products of the vectors alone would lose the
    angle between them: so differences to the first vector are measured too.
    """

    needs_torch = False
    passes = (Pass(),)

    def of_deltas(self, block: Block) -> bool:
        """Return whether changes are combined and added to the base; by default the models are combined."""
        return False

    def coefficients(self, span: Span, block: Block) -> tuple[np.ndarray, str]:
        """Return float64 coefficients [models] for the vectors of a span, and a warning or ""."""
        raise NotImplementedError

    def measure(self, block: Block, stats: Stats) -> Measures:
        return block.inner_products(deltas=self.of_deltas(block), differences=True)

    def conclude(self, block: Block, stats: Stats) -> Measures:
        from emberge_merge.methods.spherical.angles import Span

        span = Span.of(stats[-1]["products"], stats[-1]["differences"])
        coefficients, warning = self.coefficients(span, block)
        return {"coefficients": coefficients, "warning": warning}

    def formula(self, block: Block, stats: Stats) -> WeightedSum:
        return WeightedSum(stats[0]["coefficients"], of_deltas=self.of_deltas(block))
