"""Losses: one a file."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Loss, TokenLoss

__all__ = ["losses"]


def losses() -> Mapping[str, type[Loss] | type[TokenLoss]]:
    """Every loss of the plugin by name."""
    from emberge_standard.losses.angle import AnglE
    from emberge_standard.losses.cosent import CoSENT
    from emberge_standard.losses.infonce import InfoNCE
    from emberge_standard.losses.kl_distillation import KLDistillation
    from emberge_standard.losses.margin_mse import MarginMSE
    from emberge_standard.losses.matryoshka import Matryoshka
    from emberge_standard.losses.mlm import MLM
    from emberge_standard.losses.sentence_transformers import SentenceTransformersLoss

    return {
        "infonce": InfoNCE,
        "cosent": CoSENT,
        "angle": AnglE,
        "margin_mse": MarginMSE,
        "kl_distillation": KLDistillation,
        "matryoshka": Matryoshka,
        "mlm": MLM,
        "sentence_transformers": SentenceTransformersLoss,
    }
