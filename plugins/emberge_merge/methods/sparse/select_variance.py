"""Keeping the elements at which models differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, PerTensor, Stats

from emberge_merge.methods.sparse.ranking import Ranking

if TYPE_CHECKING:
    from emberge.numerics import KernelIntegers
    from torch import Tensor

    from emberge_merge.methods.sparse.cut import Limit


@dataclass(frozen=True, kw_only=True)
class SelectVariance(Ranking):
    """Keep all models' changes where their variance is largest, and undo the others (the S of SCE).

    Of the elements whose variance over the models is not zero, the share `select_topk` is kept; 1 keeps
    everything (Wan et al., 2024, arXiv:2408.07990).

    Example:
        strategy: [{select_variance: {select_topk: 0.5}}, sign_consensus]
    """

    select_topk: PerTensor = PerTensor(1.0, within=(0, 1))
    """Share of the elements to keep."""

    base_policy = "required"
    weight_role = "unused"
    needs_torch = False
    counts_nonzero = True

    def choose_ranked(self, block: Block) -> Block:
        return block.record(TakeVariance(len(block.models)))

    def count_kept(self, block: Block, total: int, nonzero: Sequence[int]) -> Sequence[int]:
        share = block.options.select_topk
        return [total if share >= 1 else int(share * count) for count in nonzero]

    def apply(self, block: Block, stats: Stats) -> Block:
        (cut,) = stats[-1]["cuts"]
        if cut.keep_count == cut.total:
            return block
        return block.record(KeepVaried(cut.limit, len(block.models)))


@dataclass(frozen=True, slots=True)
class TakeVariance:
    """A change that replaces all models' deltas by their variance over the models."""

    model_count: int

    kernel = "variance"

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        return _compute_variance(deltas)[None]

    def list_kernel_arguments(self) -> list[tuple[float, KernelIntegers]]:
        return [(1 / self.model_count, (0, 0, 0))] * self.model_count


@dataclass(frozen=True, slots=True)
class KeepVaried:
    """A change that keeps all models' deltas where their variance is above zero and reaches a limit."""

    limit: Limit
    model_count: int

    kernel = "select"

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        variances = _compute_variance(deltas)
        self.limit.keep(variances.view(-1), variances.view(-1), start)
        # What stays is above zero, so signs make the mask, faster than a comparison's truths.
        return deltas.mul_(variances.sign_())

    def list_kernel_arguments(self) -> list[tuple[float, KernelIntegers]]:
        return [(1 / self.model_count, self.limit.as_kernel_integers())] * self.model_count


def _compute_variance(deltas: Tensor) -> Tensor:
    """Return the variance of [models, *rows] over the models, [*rows]."""
    import torch
    from emberge.numerics import take_tensor_like

    share = 1 / len(deltas)
    mean = torch.mul(deltas[0], share, out=take_tensor_like(deltas[0]))
    for delta in deltas[1:]:
        mean.add_(delta, alpha=share)
    variance, distance = take_tensor_like(mean).zero_(), take_tensor_like(mean)
    for delta in deltas:
        variance.add_(torch.sub(delta, mean, out=distance).square_(), alpha=share)
    return variance
