"""Losses, one per file."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["losses"]


def losses() -> Mapping[str, str]:
    """Return the plugin's losses by name."""
    return {
        "infonce": "emberge_train.losses.infonce:InfoNCE",
        "cosent": "emberge_train.losses.cosent:CoSENT",
        "embedding_distillation": (
            "emberge_train.losses.embedding_distillation:EmbeddingDistillation"
        ),
        "similarity_distillation": (
            "emberge_train.losses.similarity_distillation:SimilarityDistillation"
        ),
        "margin_mse": "emberge_train.losses.margin_mse:MarginMSE",
        "kl_distillation": "emberge_train.losses.kl_distillation:KLDistillation",
        "binary_cross_entropy": "emberge_train.losses.binary_cross_entropy:BinaryCrossEntropy",
        "flops": "emberge_train.losses.flops:FLOPS",
        "keep_space": "emberge_train.losses.keep_space:KeepSpace",
        "matryoshka": "emberge_train.losses.matryoshka:Matryoshka",
        "mlm": "emberge_train.losses.mlm:MLM",
        "mntp": "emberge_train.losses.mntp:MNTP",
        "causal_lm": "emberge_train.losses.causal_lm:CausalLM",
        "sentence_transformers": "emberge_train.losses.sentence_transformers:SentenceTransformersLoss",
    }
