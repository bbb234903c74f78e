"""One model, multiplied by a factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, MergeStrategy, PerTensor, Stats

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Passthrough(MergeStrategy):
    """Take the weights of the only model, multiplied by `scale`.

    Example:
        merged:
          merge:
            models: ./a
            strategy: {passthrough: {scale: 0.5}}
    """

    scale: PerTensor = PerTensor(1.0)

    arity = range(1, 2)
    base_policy = "forbidden"
    weight_role = "unused"
    needs_torch = False

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return block.combine([block.options.scale])
