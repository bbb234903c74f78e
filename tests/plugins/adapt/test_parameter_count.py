"""Parameters of an embedding model are counted without heads, from headers or from the config."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from emberge.model_folder import Checkpoint
from emberge_adapt.adapt_plan import count_parameters

TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 90,
}


EXPERTS = {
    "qwen3_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 2,
        "head_dim": 8,
    },
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize("kind", EXPERTS)
def test_parameters_are_counted_without_the_head(kind: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(kind, **TINY, **EXPERTS[kind])
    model = transformers.AutoModelForCausalLM.from_config(config)  # its head does not embed
    model.save_pretrained(tmp_path)
    total = sum(p.numel() for p in model.base_model.parameters())
    assert count_parameters(Checkpoint(tmp_path)) == total
    (tmp_path / "model.safetensors").unlink()
    assert count_parameters(Checkpoint(tmp_path)) == total, "by the config"
