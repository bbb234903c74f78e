"""Tiny dense models of every architecture that can be upcycled, as SentenceTransformers folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import tiny

_COMMON = {
    **{
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    },
    **{"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "max_position_embeddings": 66},
}
_DECODER = {"num_key_value_heads": 2}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": {**_DECODER, "head_dim": 8},
    "llama": _DECODER,
    "mistral": {**_DECODER, "sliding_window": None},
    "eurobert": {"mask_token_id": 4},
    "granite": {**_DECODER, "residual_multiplier": 0.5, "embedding_multiplier": 2.0},
    "bert": _STILL,
    "xlm-roberta": _STILL,
    "roberta": _STILL,
    "jina_embeddings_v3": _STILL,
    "modernbert": {"cls_token_id": 2, "sep_token_id": 3, "local_attention": 8},
    "gemma3_text": {**_DECODER, "head_dim": 8, "sliding_window": 8},
}
CAUSAL = ("qwen3", "llama", "mistral", "granite", "gemma3_text")


def dense(folder: Path, kind: str, *, seed: int = 0, head: bool = False, **changes: Any) -> Path:
    """Write a tiny dense model of a type, in which no two numbers are equal by chance.

    With `head` it predicts tokens.
    """
    from transformers import CONFIG_MAPPING

    folder.mkdir(parents=True)
    size = tiny.write_tokenizer(folder)
    config = CONFIG_MAPPING[kind](vocab_size=size, **{**_COMMON, **CONFIGS[kind], **changes})
    predicting = "AutoModelForCausalLM" if kind in CAUSAL else "AutoModelForMaskedLM"
    tiny.save_random(folder, config, predicting if head else "AutoModel", seed=seed)
    tiny.write_modules(folder, 32, pooling="last" if kind in CAUSAL else "mean")
    return folder
