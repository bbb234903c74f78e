"""Losses: one a file."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Loss, TokenLoss

__all__ = ["losses"]


def losses() -> Mapping[str, type[Loss] | type[TokenLoss]]:
    """Return the plugin's losses by name."""
    from emberge_train.losses.angle import AnglE
    from emberge_train.losses.causal_lm import CausalLM
    from emberge_train.losses.cosent import CoSENT
    from emberge_train.losses.infonce import InfoNCE
    from emberge_train.losses.kl_distillation import KLDistillation
    from emberge_train.losses.margin_mse import MarginMSE
    from emberge_train.losses.matryoshka import Matryoshka
    from emberge_train.losses.mlm import MLM
    from emberge_train.losses.mntp import MNTP
    from emberge_train.losses.sentence_transformers import SentenceTransformersLoss

    return {
        "infonce": InfoNCE,
        "cosent": CoSENT,
        "angle": AnglE,
        "margin_mse": MarginMSE,
        "kl_distillation": KLDistillation,
        "matryoshka": Matryoshka,
        "mlm": MLM,
        "mntp": MNTP,
        "causal_lm": CausalLM,
        "sentence_transformers": SentenceTransformersLoss,
    }
