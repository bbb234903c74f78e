"""Tiny causal language models of many classes, as transformers saves them, hybrids among them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import tiny
from tests.support.json_files import edit

_COMMON: Mapping[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
    **{"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "max_position_embeddings": 64},
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_DELTA_NET = {
    **{"linear_num_value_heads": 4, "linear_num_key_heads": 2},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8},
}
_ROPE = {"rope_type": "default", "mrope_section": [2, 1, 1]}

DECODERS: Mapping[str, Mapping[str, Any]] = {
    # Rows to spare: the tokenizer of this class adds a token of its own.
    "qwen2": {"vocab_size": 160},
    "qwen3": {},
    "qwen3_moe": _EXPERTS,
    "llama": {},
    "mistral": {"sliding_window": 4},
    "gemma2": {"sliding_window": 4},
    "gemma3_text": {"sliding_window": 6},
    "granite": {},
    "qwen3_vl": {"rope_parameters": _ROPE},
    "qwen3_vl_text": {"rope_parameters": _ROPE},
    "qwen3_asr": {},
}
"""Classes whose layers all obey a switch of attention, with what each needs to be tiny."""

TALKING = ("qwen3_vl", "qwen3_asr")
"""Those of them with a tower beside the text trunk."""

HYBRIDS: Mapping[str, Mapping[str, Any]] = {
    "qwen3_5_text": {**_DELTA_NET, "num_hidden_layers": 4},
    "qwen3_next": {
        **{**_DELTA_NET, **_EXPERTS, "num_hidden_layers": 4},
        "shared_expert_intermediate_size": 16,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}
"""Classes of which some layers carry a state from token to token, and so stay causal."""


def decoder(folder: Path, kind: str, *, head: bool = False, **changes: Any) -> Path:
    """Write a tiny model of a type with a tokenizer, bare or with its head; no two numbers are equal."""
    folder.mkdir(parents=True)
    size = tiny.write_tokenizer(folder)
    config = _config(
        kind, {**_COMMON, **DECODERS.get(kind, HYBRIDS.get(kind, {})), **changes}, size
    )
    tiny.save_random(folder, config, "AutoModelForCausalLM" if head else "AutoModel")
    if kind == "qwen3_asr":
        _add_processor(folder)
    return folder


def _add_processor(folder: Path) -> None:
    """Write what Qwen3-ASR reads sound with; some tokens stand in for those around sound."""
    from transformers import AutoTokenizer, Qwen3ASRProcessor, WhisperFeatureExtractor

    marks = {"audio_token": "[UNK]", "audio_bos_token": "[CLS]", "audio_eos_token": "[SEP]"}
    edit(folder, "tokenizer_config.json", extra_special_tokens=marks)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    Qwen3ASRProcessor(WhisperFeatureExtractor(feature_size=16), tokenizer).save_pretrained(folder)


def _config(kind: str, values: dict[str, Any], vocabulary: int) -> Any:
    from transformers import CONFIG_MAPPING

    known = CONFIG_MAPPING[kind]
    text = {"vocab_size": vocabulary, **values}
    if kind == "qwen3_vl":
        vision = {
            **{"depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2},
            **{"patch_size": 4, "num_position_embeddings": 16, "out_hidden_size": 32},
            "deepstack_visual_indexes": [0],
        }
        return known(text_config=text, vision_config=vision)
    if kind == "qwen3_asr":
        audio = {
            **{"num_mel_bins": 16, "d_model": 16, "encoder_layers": 1, "encoder_ffn_dim": 32},
            **{"encoder_attention_heads": 2, "output_dim": 32, "downsample_hidden_size": 8},
        }
        return known(text_config={"model_type": "qwen3", **text}, audio_config=audio)
    return known(**text)
