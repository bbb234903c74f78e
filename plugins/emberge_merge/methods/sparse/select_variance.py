"""Keeping the elements at which models differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emberge import Block, PerTensor, Stats

from emberge_merge.methods.ranking import Ranking


@dataclass(frozen=True, kw_only=True)
class SelectVariance(Ranking):
    """Keep all models' changes where their variance is largest, and undo the others (the S of SCE).

    Of the elements whose variance over the models is not zero, the share `select_topk` is kept; 1 keeps
    everything (Wan et al., 2024, arXiv:2408.07990).

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: [{select_variance: {select_topk: 0.5}}, sign_consensus]
    """

    select_topk: PerTensor = PerTensor(1.0, within=(0, 1))
    """Share of the elements to keep."""

    base_policy = "required"
    weight_role = "unused"
    needs_torch = False
    counts_nonzero = True

    def ranked(self, block: Block) -> Block:
        return block.variances()

    def keeps(self, block: Block, total: int, nonzero: Sequence[int]) -> Sequence[int]:
        share = block.options.select_topk
        return [total if share >= 1 else int(share * count) for count in nonzero]

    def apply(self, block: Block, stats: Stats) -> Block:
        (cut,) = stats[-1]["cuts"]
        if cut.keep_count == cut.total:
            return block
        return block.keep_varied(cut.limit)
