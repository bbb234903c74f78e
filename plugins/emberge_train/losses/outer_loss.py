"""Base class of losses that change embeddings and pass them to inner losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from emberge import EmbeddingKind, Embeddings, Loss

from emberge_train.losses.guided_loss import list_guided_losses

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class OuterLoss(Loss):
    """A loss that changes embeddings and passes them to one or several weighted inner losses.

    The inner losses' needs, learned values and problems become its own. A subclass sets
    `cross_rank`, and calls `inner` for the inner losses' sum.
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
    def takes_single_texts(self) -> bool:
        return all(inner_loss.takes_single_texts for inner_loss in self.loss)

    def check(self, dimension: int) -> Sequence[str]:
        return [fault for inner_loss in self.loss for fault in inner_loss.check(dimension)]

    def parameters(self) -> Mapping[str, Tensor]:
        return {
            f"{number}.{name}": value
            for number, loss in enumerate(self.loss)
            for name, value in loss.parameters().items()
        }

    def inner(self, embeddings: Embeddings, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of the inner losses, each with its learned parameters."""
        total = embeddings.anchor.new_zeros(())
        for number, loss in enumerate(self.loss):
            prefix = f"{number}."
            learned = {
                name.removeprefix(prefix): value
                for name, value in parameters.items()
                if name.startswith(prefix)
            }
            total = total + loss.weight * loss(embeddings, learned)
        return total
