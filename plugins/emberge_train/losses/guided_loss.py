"""Losses with a guide: a teacher whose embeddings of the batch they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from emberge import Backbone, Embeddings, Loss, ModelRef, TextLength, TokenLoss


@dataclass(frozen=True, kw_only=True)
class Guide:
    """Frozen model whose embeddings of each batch a loss gets, next to those of the trained model.

    `backbone` loads `model`; by default it is a backbone of the training's kind with default options. Texts
    get the guide's own prompts, if it has any, and are cut to `max_length` tokens, by default the guide's own
    limit.

    With `ahead` all texts of the data are embedded before the first step. Their embeddings are kept on disk,
    where later trainings with the same model and data find them.
    """

    model: ModelRef
    backbone: Backbone | None = None
    max_length: TextLength | None = None
    ahead: bool = False

    def choose_backbone(self, trained: Backbone) -> Backbone:
        """Return the guide's backbone, by default one of the class of `trained`."""
        return self.backbone if self.backbone is not None else type(trained)()


@dataclass(frozen=True, kw_only=True)
class GuidedLoss(Loss):
    """Loss that reads its guide's embeddings of the batch, `Embeddings.guide`."""

    guide: Guide | None = None
    """The teacher, as of a step `distil`."""

    @property
    def compares_with_guide(self) -> bool:
        """True if the loss compares the model's embeddings with the guide's, so their sizes must be equal."""
        return False

    @property
    def lacks_guide(self) -> bool:
        """True if the loss cannot be computed without a guide, and has none."""
        return self.guide is None


def give_guide(loss: Loss, guide: Guide) -> Loss:
    """Return the loss with a guide, if it or a loss inside it can have one and has none."""
    inner = getattr(loss, "loss", ())
    if isinstance(inner, tuple) and inner:
        changed: dict[str, Any] = {
            "loss": tuple(give_guide(inner_loss, guide) for inner_loss in inner)
        }
    elif isinstance(loss, GuidedLoss) and loss.guide is None:
        changed = {"guide": guide}
    else:
        return loss
    return replace(loss, **changed)


def list_guided_losses(losses: Sequence[Any]) -> list[GuidedLoss]:
    """Return all losses that can have a guide, those inside other losses included."""
    guided: list[GuidedLoss] = []
    for loss in losses:
        inner = getattr(loss, "loss", ())
        guided += [loss] if isinstance(loss, GuidedLoss) else []
        guided += list_guided_losses(inner) if isinstance(inner, tuple) else []
    return guided


def find_guide(losses: Sequence[Loss | TokenLoss]) -> Guide | None:
    """Return the guide of a sum of losses; None if no loss has one.

    Raises:
        ValueError: if losses have different guides, or one lacks its guide.
    """
    guided = list_guided_losses(losses)
    for loss in guided:
        if loss.lacks_guide:
            raise ValueError(
                f"loss {type(loss).__name__} needs a guide; name its model: guide: {{model: …}}"
            )
    guides = [loss.guide for loss in guided if loss.guide is not None]
    if any(guide != guides[0] for guide in guides):
        raise ValueError("its losses have different guides; give them one")
    return guides[0] if guides else None


def require_guide(embeddings: Embeddings, loss: str) -> Embeddings:
    """Return the guide's embeddings of a batch.

    Raises:
        ValueError: if the batch lacks them.
    """
    if embeddings.guide is None:
        raise ValueError(f"{loss} needs a guide, and these embeddings lack one's")
    return embeddings.guide


def require_guide_of_size(embeddings: Embeddings, loss: str) -> Embeddings:
    """Return the guide's embeddings of a batch, which have the size of the model's.

    Raises:
        ValueError: if the batch lacks them, or they have another size.
    """
    guide = require_guide(embeddings, loss)
    size, guide_size = embeddings.anchor.shape[-1], guide.anchor.shape[-1]
    if size != guide_size:
        raise ValueError(
            f"{loss}: the guide's embeddings have {guide_size} numbers and the model's {size}; name a guide "
            "of the same size"
        )
    return guide
