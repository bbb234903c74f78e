"""Losses around other losses: the base class, and Matryoshka, at several sizes of the embedding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from emberge import (
    AnyNumber,
    Count,
    DataError,
    EmbeddingKind,
    Embeddings,
    Loss,
    TaskKind,
    scale_to_unit,
)

from emberge_train.losses.guided_loss import list_guided_losses

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class OuterLoss(Loss):
    """A loss that changes embeddings and passes them to one or several weighted inner losses.

    What the inner losses need and can read, it needs and can read. A subclass sets `cross_rank`, and calls
    `sum_inner`.
    """

    loss: tuple[Loss, ...]
    layers: tuple[float, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if not self.loss:
            raise ValueError("loss takes at least one loss")
        guides = [loss.guide for loss in list_guided_losses(self.loss) if loss.guide is not None]
        if any(guide != guides[0] for guide in guides):
            raise ValueError("its losses have different guides; wrap each of them by itself")
        layers = {layer for inner_loss in self.loss for layer in inner_loss.layers}
        object.__setattr__(self, "layers", tuple(sorted(layers)))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(inner_loss.needs for inner_loss in self.loss))

    @property
    def kinds(self) -> frozenset[EmbeddingKind]:
        return frozenset.intersection(*(inner_loss.kinds for inner_loss in self.loss))

    @property
    def in_batch_tasks(self) -> frozenset[TaskKind]:
        return frozenset().union(*(inner_loss.in_batch_tasks for inner_loss in self.loss))

    @property
    def compares_rows(self) -> bool:
        return any(inner_loss.compares_rows for inner_loss in self.loss)

    @property
    def takes_single_texts(self) -> bool:
        return all(inner_loss.takes_single_texts for inner_loss in self.loss)

    def check(self, dimension: int) -> Sequence[str]:
        return [problem for inner in self.loss for problem in inner.check(dimension)]

    def sum_inner(self, embeddings: Embeddings) -> Tensor:
        """Return the weighted sum of the inner losses, a scalar."""
        total = embeddings.anchor.new_zeros(())
        for loss in self.loss:
            total = total + loss.weight * loss(embeddings)
        return total


@dataclass(frozen=True, kw_only=True)
class Matryoshka(OuterLoss):
    """Losses at several sizes of the embedding at once (Kusupati et al., 2022, arXiv:2205.13147).

    For every size m in `dims`, the first m numbers of each embedding are scaled to length one and given to
    `loss` (one loss, or a weighted sum of several). The total is the sum of the values, each times its entry
    of `weights` (by default 1). A guide's embeddings are cut, too, if the losses compare the model's
    embeddings with them, as `embedding_distillation` does. `loss` decides whether ranks gather and
    which layers are read; if it is a sum, these settings must be equal in all its losses. The model runs once
    for all sizes.

    Example:
        loss: {matryoshka: {loss: infonce, dims: [768, 256, 64]}}
    """

    loss: tuple[Loss, ...]
    dims: tuple[Count, ...]
    weights: tuple[AnyNumber, ...] = ()
    cross_rank: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        if not self.loss or not self.dims:
            raise ValueError("matryoshka takes at least one loss and one of dims")
        if len(set(self.dims)) < len(self.dims):
            raise ValueError(f"dims are different sizes, not {list(self.dims)}")
        if self.weights and len(self.weights) != len(self.dims):
            raise ValueError(f"{len(self.dims)} dims have {len(self.weights)} weights")
        guided = [loss for loss in list_guided_losses(self.loss) if loss.guide]
        if len({loss.compares_with_guide for loss in guided}) > 1:
            raise ValueError(
                "its losses read the guide's embeddings whole and cut; give each a matryoshka of its own"
            )
        if len({loss.cross_rank for loss in self.loss}) > 1:
            raise ValueError(
                "its losses differ in cross_rank; give each a matryoshka of its own, or set cross_rank alike"
            )
        super().__post_init__()
        object.__setattr__(self, "cross_rank", self.loss[0].cross_rank)

    @property
    def kinds(self) -> frozenset[EmbeddingKind]:
        return super().kinds & {"vector", "token_vectors"}  # others have no leading numbers

    def check(self, dimension: int) -> Sequence[str]:
        if max(self.dims) > dimension:
            return [
                f"dims asks for the first {max(self.dims)} numbers of embeddings that have {dimension}"
            ]
        return [p for size in self.dims for p in super(Matryoshka, self).check(size)]

    def __call__(self, embeddings: Embeddings) -> Tensor:
        for problem in self.check(embeddings.anchor.shape[-1]):
            raise DataError(f"matryoshka: {problem}")
        compares = any(loss.compares_with_guide for loss in list_guided_losses(self.loss))
        total = embeddings.anchor.new_zeros(())
        for size, weight in zip(self.dims, self.weights or (1.0,) * len(self.dims), strict=True):
            cut = _cut_embeddings(embeddings, size, with_guide=compares)
            total = total + weight * self.sum_inner(cut)
        return total


def _cut_embeddings(e: Embeddings, size: int, *, with_guide: bool) -> Embeddings:
    """Return the first numbers of all embeddings, layers' included, scaled to length one."""
    guide = e.guide
    if guide is not None and with_guide:
        guide = _cut_embeddings(guide, size, with_guide=False)
    return dataclasses.replace(
        e,
        anchor=scale_to_unit(e.anchor[..., :size]),
        positive=scale_to_unit(e.positive[..., :size]),
        negative=scale_to_unit(e.negative[..., :size]),
        layers={
            layer: _cut_embeddings(inner, size, with_guide=False)
            for layer, inner in e.layers.items()
        },
        guide=guide,
    )
