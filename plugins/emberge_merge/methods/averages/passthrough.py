"""One model, multiplied by a factor."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Block, MergeStrategy, PerTensor, Stats, WeightedSum


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

    def formula(self, block: Block, stats: Stats) -> WeightedSum:
        return WeightedSum([block.options.scale])
