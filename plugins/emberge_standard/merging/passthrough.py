"""One model as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import BasePolicy, Block, MergeStrategy, PerTensor, Stats, WeightRole

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Passthrough(MergeStrategy):
    """Take the one model as it is, times `scale`."""

    scale: PerTensor = PerTensor(1.0)

    @property
    def arity(self) -> range:
        return range(1, 2)

    @property
    def base_policy(self) -> BasePolicy:
        return "forbidden"

    @property
    def weight_role(self) -> WeightRole:
        return "unused"

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return block.combine([block.options.scale])
