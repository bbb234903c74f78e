"""Sums of e^<left, right> by blocks of rows, whose table of products is made twice and never held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from emberge.numerics.similarity import lowest_score

__all__ = ["LogSumProducts", "log_sums"]

Barred = Callable[[slice], Tensor | None]


def log_sums(left: Tensor, right: Tensor, barred: Barred, block: slice) -> Tensor:
    """Log of the sums over all of `right` for a block of rows of `left` [rows of the block]."""
    return torch.logsumexp(_table(left, right, barred, block), dim=1)


def _table(left: Tensor, right: Tensor, barred: Barred, block: slice) -> Tensor:
    scores = left[block] @ right.T
    without = barred(block)
    return scores if without is None else scores.masked_fill_(without, lowest_score(scores))


class LogSumProducts(torch.autograd.Function):
    """The table by `blocks`; only its row sums are kept."""

    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, barred: Barred, blocks: tuple[slice, ...]
    ) -> Tensor:
        sums = torch.cat([log_sums(left, right, barred, block) for block in blocks])
        ctx.barred, ctx.blocks = barred, blocks
        ctx.save_for_backward(left, right, sums)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, pull: Tensor) -> tuple[Tensor, Tensor, None, None]:
        left, right, sums = ctx.saved_tensors
        left_grad, right_grad = torch.empty_like(left), torch.zeros_like(right)
        for block in ctx.blocks:
            shares = _table(left, right, ctx.barred, block)
            shares.sub_(sums[block, None]).exp_().mul_(pull[block, None])
            left_grad[block] = shares @ right
            right_grad.addmm_(shares.T, left[block])
        return left_grad, right_grad, None, None
