"""Views that every tensor has, a number too: one row a model, and one value a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["by_model", "spread"]


def by_model(tensors: Tensor) -> Tensor:
    """[models, *rows] as [models, elements]."""
    return tensors.reshape(tensors.shape[0], -1)


def spread(values: Tensor, like: Tensor) -> Tensor:
    """One value a model in the dtype of [models, *rows], shaped so that it multiplies that."""
    return values.to(like).reshape(-1, *[1] * (like.dim() - 1))
