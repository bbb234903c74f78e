"""Folders of real models without their weights: configs, tokenizers and holes of the right sizes.

They are made of transformers' own classes and the sizes that the models' papers and cards print.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.specialists import HEARD
from tests.support.tiny import WORDS

_QWEN3 = {
    **{"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8},
    **{"head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True},
    **{"bos_token_id": 151643, "eos_token_id": 151643},
}
_SMALL = {"hidden_size": 1024, "intermediate_size": 3072}
_LARGE = {"hidden_size": 2048, "intermediate_size": 6144}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
_GEMMA = {
    **{"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144},
    **{"sliding_window": 512, "max_position_embeddings": 32768, "query_pre_attn_scalar": 256},
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    },
}
_MROPE = {
    **{"rope_type": "default", "rope_theta": 5e6},
    **{"mrope_interleaved": True, "mrope_section": [24, 20, 20]},
}
_CAUSAL = "AutoModelForCausalLM"


def _asr(text: Mapping[str, Any], audio: Mapping[str, Any]) -> dict[str, Any]:
    trunk = {**_QWEN3, **_ROPE, **text, "model_type": "qwen3", "max_position_embeddings": 65536}
    return {"text_config": trunk, "audio_config": audio}


# (loader, model type, options of the config) by hub id. Sizes: arXiv:2505.09388 (Qwen3), 2503.19786 (Gemma 3)
# and the card of its 270M, 2511.21631 (Qwen3-VL), 2601.21337 (Qwen3-ASR), 2510.14276 (Qwen3Guard).
MODELS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "Qwen/Qwen3-0.6B": (
        *(_CAUSAL, "qwen3"),
        {**_QWEN3, **_SMALL, **_ROPE, "max_position_embeddings": 40960, "eos_token_id": 151645},
    ),
    "Qwen/Qwen3-1.7B": (
        *(_CAUSAL, "qwen3"),
        {**_QWEN3, **_LARGE, **_ROPE, "max_position_embeddings": 40960, "eos_token_id": 151645},
    ),
    "google/gemma-3-270m": (
        *(_CAUSAL, "gemma3_text"),
        {**_GEMMA, "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18},
    ),
    "google/gemma-3-1b-it": (
        *(_CAUSAL, "gemma3_text"),
        {**_GEMMA, "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26},
    ),
    "Qwen/Qwen3Guard-Gen-0.6B": (
        *(_CAUSAL, "qwen3"),
        {**_QWEN3, **_SMALL, **_ROPE, "max_position_embeddings": 32768, "eos_token_id": 151645},
    ),
    "Qwen/Qwen3-VL-2B-Instruct": (
        *("AutoModelForImageTextToText", "qwen3_vl"),
        {
            "text_config": {
                **{**_QWEN3, **_LARGE, "rope_parameters": _MROPE, "eos_token_id": 151645},
                "max_position_embeddings": 262144,
            },
            "vision_config": {
                **{"depth": 24, "hidden_size": 1024, "intermediate_size": 4096},
                **{"out_hidden_size": 2048, "deepstack_visual_indexes": [5, 11, 17]},
            },
            "tie_word_embeddings": True,
        },
    ),
    "Qwen/Qwen3-ASR-0.6B-hf": (
        *("AutoModelForMultimodalLM", "qwen3_asr"),
        _asr(
            _SMALL,
            {
                **{"d_model": 896, "encoder_layers": 18, "encoder_attention_heads": 14},
                **{"encoder_ffn_dim": 3584, "output_dim": 1024},
            },
        ),
    ),
    "Qwen/Qwen3-ASR-1.7B-hf": (
        *("AutoModelForMultimodalLM", "qwen3_asr"),
        _asr(_LARGE, {"output_dim": 2048}),
    ),
}
_GEMMA_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
_QWEN_FIRST = 151643
_QWEN_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>"),
    *("<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>"),
    *("</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>"),
    "</think>",
)
# How images and sound are read: the defaults of the classes, and the sizes that the cards print.
_PIXELS = {
    **{"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2},
    **{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
}
_PROCESSORS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "qwen3_vl": {
        "preprocessor_config.json": {
            **{"image_processor_type": "Qwen2VLImageProcessorFast", **_PIXELS},
            "size": {"shortest_edge": 65536, "longest_edge": 16777216},
        },
        "video_preprocessor_config.json": {
            **{"video_processor_type": "Qwen3VLVideoProcessor", **_PIXELS},
            "size": {"shortest_edge": 4096, "longest_edge": 25165824},
        },
    },
    "qwen3_asr": {
        "processor_config.json": {
            "processor_class": "Qwen3ASRProcessor",
            "feature_extractor": HEARD,
        }
    },
}
# Of sound, those whose ids are known.
_ASR_TOKENS = {"<|audio_start|>": 151669, "<|audio_end|>": 151670, "<|audio_pad|>": 151676}


def _tokens(kind: str) -> dict[str, int]:
    if kind.startswith("gemma"):
        return {token: i for i, token in enumerate(_GEMMA_TOKENS)}
    own = {token: _QWEN_FIRST + i for i, token in enumerate(_QWEN_TOKENS)}
    return {**own, **_ASR_TOKENS} if kind == "qwen3_asr" else own


def write_model(folder: Path, model: str, *, weights: bool = True) -> Path:
    """Write a model's folder: configs, a small tokenizer, and a file of weights that is all hole."""
    import torch
    import transformers

    folder.mkdir(parents=True)
    loader, kind, options = MODELS[model]
    config = transformers.CONFIG_MAPPING[kind](**options)
    with torch.device("meta"):
        made = getattr(transformers, loader).from_config(config, dtype=torch.bfloat16)
    written = {**json.loads(made.config.to_json_string()), "architectures": [type(made).__name__]}
    written.pop("transformers_version", None)
    (folder / "config.json").write_text(json.dumps(written), encoding="utf-8")
    _write_tokenizer(folder, _tokens(kind))
    for name, content in _PROCESSORS.get(kind, {}).items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    if weights:
        tied = made.all_tied_weights_keys
        shapes = {n: [*t.shape] for n, t in made.state_dict().items() if n not in tied}
        write_hole(folder / "model.safetensors", shapes)
    return folder


def write_hole(path: Path, tensors: Mapping[str, Sequence[int]]) -> None:
    """Write a header of tensors in bfloat16, and as many bytes as it names without writing them."""
    from emberge.tensor_files import TensorSpec, encode_header

    specs = [TensorSpec(name, tuple(shape), "bfloat16") for name, shape in tensors.items()]
    header, _ = encode_header(specs, {"format": "pt"})
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(spec.nbytes for spec in specs))


def _write_tokenizer(folder: Path, tokens: Mapping[str, int]) -> None:
    """Write a tokenizer of words in which the special tokens have the model's ids."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    first = 10
    vocabulary = {**tokens, **{word: first + i for i, word in enumerate(WORDS)}}
    named = list(tokens)
    pad = named[0]
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=pad))
    tokenizer.add_special_tokens(named)
    own = {"mask_token": "<mask>"} if "<mask>" in tokens else {}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=named[1], model_max_length=32768, **own
    ).save_pretrained(folder)
