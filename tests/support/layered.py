"""Tiny models of four layers, of architectures whose layers are of one kind or of two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support import tiny
from tests.support.decoders import decoder

LAYERS = 4


def model_of(folder: Path, architecture: str) -> Path:
    """Write a tiny model of four layers; ModernBERT and Gemma 3 have layers of two kinds."""
    if architecture in ("llama", "gemma2", "qwen2"):
        return decoder(folder, architecture, num_hidden_layers=LAYERS)
    changes: dict[str, Any] = {}
    if architecture == "gemma3":
        kinds = ["sliding_attention", "full_attention"] * 2
        changes = {"layer_types": kinds}  # the window is of 8 tokens, a text of 15
    if architecture == "modernbert":
        changes = {"local_attention": 4}
    if architecture == "mpnet":
        return mpnet(folder)
    return tiny.checkpoint(folder, architecture, num_hidden_layers=LAYERS, **changes)


def mpnet(folder: Path) -> Path:
    folder.mkdir()
    size = tiny.write_tokenizer(folder)
    torch.manual_seed(0)
    config = transformers.MPNetConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=66,
    )
    transformers.MPNetModel(config).save_pretrained(folder)
    tiny.write_modules(folder, 32)
    return folder
