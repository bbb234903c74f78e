"""Keeping the places where models differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import BasePolicy, Block, PerTensor, Stats, WeightRole

from emberge_standard.merging.largest import Ranking

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SelectVariance(Ranking):
    """Keep all models' changes where their variance is largest, and undo the others (the S of SCE).

    Of the places whose variance over the models is not zero, the share `select_topk` stays; 1 keeps
    everything (Wan et al., 2024, arXiv:2408.07990).
    """

    select_topk: PerTensor = PerTensor(1.0, within=(0, 1))
    """Share of the places that stay."""

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    @property
    def weight_role(self) -> WeightRole:
        return "unused"

    @property
    def counts_nonzero(self) -> bool:
        return True

    def ranked(self, block: Block) -> Tensor:
        return block.deltas.var(0, correction=0)[None]

    def keeps(self, block: Block, total: int, nonzero: Sequence[int]) -> Sequence[int]:
        share = block.options.select_topk
        return [total if share >= 1 else int(share * count) for count in nonzero]

    def apply(self, block: Block, stats: Stats) -> Block:
        variance = self.ranked(block).reshape(-1)
        kept = variance.new_zeros(variance.shape)
        (cut,) = stats[-1]["cuts"]
        if cut.keep_count == cut.total:
            return block
        cut.keep(variance, kept, block.start)
        chosen = kept.ne(0).reshape(block.tensors.shape[1:]).to(variance.dtype)
        return block.with_deltas(block.deltas * chosen)
