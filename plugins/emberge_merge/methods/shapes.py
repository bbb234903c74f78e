"""Views that every tensor has, a number too: one row a model, and one value a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["by_model", "spread"]


def by_model(tensors: Tensor) -> Tensor:
    """Reshape [models, *rows] to [models, elements]."""
    return tensors.reshape(tensors.shape[0], -1)


def spread(values: Tensor, like: Tensor) -> Tensor:
    """Shape one value a model so that it multiplies [models, *rows], in its dtype."""
    return values.to(like).reshape(-1, *[1] * (like.dim() - 1))
