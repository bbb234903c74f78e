"""Keeping the changes that matter most to a row's softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import BasePolicy, Block, Stats, WeightRole

from emberge_standard.merging.largest import Ranking

if TYPE_CHECKING:
    from torch import Tensor

_QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, kw_only=True)
class SelectImportant(Ranking):
    """Keep the changes whose importance stands out, and undo the others (Arcee Fusion, Arcee AI, 2024).

    Importance is |delta| · KL(softmax(W row) ‖ softmax(W_0 row)), and an element stays when it reaches
    median + 1.5 · (third quartile - first quartile) of its tensor. The quartiles are those of all elements,
    where mergekit samples a million of a larger tensor.
    """

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    @property
    def weight_role(self) -> WeightRole:
        return "unused"

    def ranked(self, block: Block) -> Tensor:
        return importance(block).repeat_interleave(len(_QUARTILES), 0)

    def keeps(self, block: Block, total: int, nonzero: Sequence[int]) -> Sequence[int]:
        # The value at place p of ascending order is the (total - p)-th largest.
        return [total - int(q * (total - 1)) for _ in block.models for q in _QUARTILES]

    def apply(self, block: Block, stats: Stats) -> Block:
        scores = importance(block)
        dtype = scores.dtype
        quartiles = [cut.value(dtype) for cut in stats[-1]["cuts"]]
        limits = [
            quartiles[at + 1] + 1.5 * (quartiles[at + 2] - quartiles[at])
            for at in range(0, len(quartiles), len(_QUARTILES))
        ]
        limit = scores.new_tensor(limits).view(-1, *[1] * (scores.dim() - 1))
        return block.with_deltas(block.deltas * (scores >= limit).to(dtype))


def importance(block: Block) -> Tensor:
    """How much each change matters, [models, *rows]."""
    import torch

    assert block.base is not None
    theirs = torch.softmax(block.tensors, -1) + 1e-8
    own = torch.softmax(block.base, -1) + 1e-8
    divergence = (theirs * (theirs / own).log()).sum(-1, keepdim=True)
    return block.deltas.abs() * divergence
