"""Differentiable stand-ins for the scores of sets, from cosines."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["order_loss", "ranking_loss"]

TEMPERATURE = 0.05


def ranking_loss(cosines: Tensor, relevant: Tensor) -> Tensor:
    """Return InfoNCE (van den Oord et al., 2018, arXiv:1807.03748) of queries [q] over documents [q, d].

    `relevant` is a mask; the probability of all documents that belong to a query counts together.
    """
    logits = cosines / TEMPERATURE
    found = logits.masked_fill(~relevant, -torch.inf).logsumexp(1)
    return (logits.logsumexp(1) - found).mean()


def order_loss(cosines: Tensor, gold: Tensor) -> Tensor:
    """Return CoSENT's loss (Su, 2022) of pairs [n]: no pair may be nearer than one of a higher gold."""
    wrong = (cosines[None] - cosines[:, None]) / TEMPERATURE
    pairs = wrong[gold[:, None] > gold[None]]
    return torch.cat([pairs.new_zeros(1), pairs]).logsumexp(0)
