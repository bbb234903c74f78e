"""Drop delta elements at random, small ones more often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, Measures, MergeTransform, Pass, PerModel, Stats
from emberge.contracts import as_row_shape

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DropByRank(MergeTransform):
    """Keep an element with a probability that grows with its magnitude's rank in its row (DELLA).

    Rank r of m gives density - epsilon + 2 · epsilon · (r - 1) / (m - 1); a tensor of one dimension is one
    row, and a row of one element uses `density` (Deep et al., 2024, arXiv:2406.11617).

    Example:
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

    # The draw takes longer than all the rest, and is kept as a bit for each element.
    passes = (Pass(is_exact=True),)

    def measure(self, block: Block, stats: Stats) -> Measures:
        """Draw which elements are kept, as bits by the number of the block's first row."""
        from emberge_merge.methods.sparse.ranked_draw import RankedDraw

        keys = block.random_keys("drop_by_rank")
        draw = RankedDraw(self._list_lines(block), as_row_shape(block.shape)[1], keys)
        return {"kept": {_find_first_row(block): block.evaluate(draw)}}

    def apply(self, block: Block, stats: Stats) -> Block:
        from emberge_merge.methods.sparse.ranked_draw import KeepDrawn, list_chances

        bits, width = _select_rows(stats[0]["kept"], block), as_row_shape(block.shape)[1]

        def list_probabilities() -> Tensor:
            return list_chances(block.deltas, self._list_lines(block), width)

        return block.record(KeepDrawn(bits, width)).replace(keep_probability=list_probabilities)

    def _list_lines(self, block: Block) -> list[tuple[float, float]]:
        width = as_row_shape(block.shape)[1]
        pairs = zip(block.options.density.tolist(), block.options.epsilon.tolist(), strict=True)
        return [compute_chances(*pair, width) for pair in pairs]


def _find_first_row(block: Block) -> int:
    """Return the number of the block's first row in its tensor."""
    return block.start // max(1, as_row_shape(block.shape)[1])


def _select_rows(kept: Mapping[int, np.ndarray], block: Block) -> np.ndarray:
    """Return the bits of a block's rows, from those of consecutive rows by the number of the first."""
    import numpy as np

    first, count = _find_first_row(block), block.size // max(1, as_row_shape(block.shape)[1])
    parts = [
        bits[:, max(first - start, 0) : max(first + count - start, 0)]
        for start, bits in sorted(kept.items())
    ]
    return np.concatenate(parts, axis=1)


def compute_chances(density: float, epsilon: float, width: int) -> tuple[float, float]:
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
