"""The election of a sign for each number, and the mean of the deltas that have it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from emberge.numerics.buffers import pooled_like

__all__ = ["elect", "least_divisor"]


def elect(
    deltas: Tensor,
    base: Tensor,
    votes: Sequence[float],
    weights: Sequence[float],
    *,
    normalize: bool,
    scale: float,
) -> Tensor:
    """Return base + scale × the mean of the deltas [models, *rows] that have the elected sign.

    Zero elects plus; without `normalize` the sum is not divided by the weights that agree.
    """
    elected = torch.mul(deltas[0], votes[0], out=pooled_like(deltas[0]))
    for vote, delta in zip(votes[1:], deltas[1:], strict=True):
        elected.add_(delta, alpha=vote)
    # A half with the elected sign: an indicator, less a half.
    elected.ge_(0).sub_(0.5)
    total, divisor, agrees = (
        pooled_like(elected).zero_(),
        pooled_like(elected).zero_(),
        pooled_like(elected),
    )
    for weight, delta in zip(weights, deltas, strict=True):
        torch.mul(delta, elected, out=agrees)
        # Ones and zeros of the numbers' own type multiply several times faster than truths.
        agrees.gt_(0) if weight > 0 else agrees.lt_(0)
        total.addcmul_(agrees, delta, value=weight)
        if normalize:
            divisor.add_(agrees, alpha=weight)
    if normalize:
        least = least_divisor(weights)
        total.div_(divisor.add_(divisor == 0) if least is None else divisor.clamp_(min=least))
    return torch.add(base, total, alpha=scale, out=total)


def least_divisor(weights: Sequence[float]) -> float | None:
    """Return a number below every sum of some of the weights, to divide a sum of none by; None for none.

    Raising divisors to it is ten times faster than looking for zeros, which negative weights need.
    """
    if min(weights) < 0:
        return None
    return min((w for w in weights if w > 0), default=1.0) / 2
