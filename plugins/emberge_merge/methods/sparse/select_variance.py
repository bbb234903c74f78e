"""Keeping the places where models differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, PerTensor, Stats

from emberge_merge.methods.ranking.top_k import Ranking

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SelectVariance(Ranking):
    """Keep all models' changes where their variance is largest, and undo the others (the S of SCE).

    Of the places whose variance over the models is not zero, the share `select_topk` stays; 1 keeps
    everything (Wan et al., 2024, arXiv:2408.07990).

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: [{select_variance: {select_topk: 0.5}}, sign_consensus]
    """

    select_topk: PerTensor = PerTensor(1.0, within=(0, 1))
    """Share of the places that stay."""

    base_policy = "required"
    weight_role = "unused"
    counts_nonzero = True

    def ranked(self, block: Block) -> Tensor:
        import torch
        from emberge import pooled_like

        deltas, count = block.deltas, len(block.models)
        mean = block.combine([1 / count] * count, deltas)
        variance, off = pooled_like(mean).zero_(), pooled_like(mean)
        for delta in deltas:
            variance.add_(torch.sub(delta, mean, out=off).square_(), alpha=1 / count)
        return variance[None]

    def keeps(self, block: Block, total: int, nonzero: Sequence[int]) -> Sequence[int]:
        share = block.options.select_topk
        return [total if share >= 1 else int(share * count) for count in nonzero]

    def apply(self, block: Block, stats: Stats) -> Block:
        (cut,) = stats[-1]["cuts"]
        if cut.keep_count == cut.total:
            return block
        deltas = block.own_deltas
        variance = self.ranked(block.replace(changed=deltas))
        cut.keep(variance.view(-1), variance.view(-1), block.start)
        # What stays is above zero, so signs make the mask, faster than a comparison's truths.
        return block.with_deltas(deltas.mul_(variance.sign_()))
