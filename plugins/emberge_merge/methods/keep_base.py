"""Merging a strategy's result back with the base."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from emberge import Block, Measures, MergeStrategy, NumberRange, Pass, Stats, WeightRole, component

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class KeepBase(MergeStrategy):
    """Merge by a strategy, then average the result with the base (WiSE-FT, arXiv:2109.01903).

    W = keep · W₀ + (1 - keep) · by(W₁, …) (Wortsman et al., 2022). Fine-tuning improves a model on its own
    tasks, but worsens it on others; averaging with the base restores much of that loss. The option `keep` of
    `merge` applies this strategy to the last link of every strategy in that merge.

    Example:
        strategy: {keep_base: {keep: 0.5, by: multi_slerp}}
    """

    keep: Annotated[float, NumberRange(least=0, below=1)]
    """Share of the base in the result, from 0 to below 1."""
    by: MergeStrategy = component("linear")
    """The strategy that merges the models."""

    base_policy = "required"

    @property
    def base_share(self) -> float:
        return self.keep

    @property
    def arity(self) -> range:
        return self.by.arity

    @property
    def weight_role(self) -> WeightRole:
        return self.by.weight_role

    @property
    def passes(self) -> Sequence[Pass]:
        if self.by.base_policy != "forbidden":
            return self.by.passes
        return [
            replace(one, reads="models") if one.reads == "all" else one for one in self.by.passes
        ]

    def needs_whole(self, block: Block) -> bool:
        return self.by.needs_whole(block)

    def problems(self, models: Sequence[str], groups: Sequence[str]) -> Iterable[str]:
        return self.by.problems(models, groups)

    def measure(self, block: Block, stats: Stats) -> Measures:
        return self.by.measure(_build_inner_block(block), stats)

    def conclude(self, block: Block, stats: Stats) -> Measures:
        return self.by.conclude(_build_inner_block(block), stats)

    def merge(self, block: Block, stats: Stats) -> Tensor:
        import torch

        assert block.base is not None
        merged = self.by.merge(_build_inner_block(block), stats)
        # Around the base, so that what no model changed comes out unchanged.
        return torch.add(block.base, merged - block.base, alpha=1 - self.keep)


def _build_inner_block(block: Block) -> Block:
    return block.replace(options=block.options.by)
