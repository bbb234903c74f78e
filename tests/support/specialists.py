"""Tiny specialists of one family as they are released: a text encoder, a Qwen3-VL, a Qwen3-ASR.

All have 320 rows of embeddings and one way to cut text, and know tokens that the others lack.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.tiny import save_random

ROWS = 320
ROPE: Mapping[str, Any] = {"rope_type": "default", "rope_theta": 1e6}
_TEXT_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|repo_name|>")
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
AUDIO_TOKENS = ("<|audio_start|>", "<|audio_end|>", "<|audio_pad|>")
_TRUNK: Mapping[str, Any] = {
    **{"vocab_size": ROWS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
    **{"max_position_embeddings": 512, "pad_token_id": 256, "bos_token_id": None},
    "eos_token_id": 256,
}
_VISION: Mapping[str, Any] = {
    **{"depth": 3, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4},
    **{"num_position_embeddings": 16, "out_hidden_size": 32, "deepstack_visual_indexes": [0, 1]},
}
_AUDIO: Mapping[str, Any] = {
    **{"d_model": 16, "encoder_layers": 2, "encoder_ffn_dim": 24, "encoder_attention_heads": 2},
    **{"output_dim": 32, "downsample_hidden_size": 8},
}

# Parts of their configs and of their processors' files.
SEEN_ROPE: Mapping[str, Any] = {**ROPE, "mrope_interleaved": True, "mrope_section": [2, 1, 1]}
VISION_IDS: Mapping[str, Any] = {
    **{"image_token_id": 262, "video_token_id": 263},
    **{"vision_start_token_id": 260, "vision_end_token_id": 261},
}
PICTURES: Mapping[str, Any] = {
    **{"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2},
    **{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
    "size": {"shortest_edge": 64, "longest_edge": 4096},
}
SPECTRA: Mapping[str, Any] = {
    **{"feature_size": 128, "hop_length": 160, "n_fft": 400, "sampling_rate": 16000},
    **{"chunk_length": 30, "padding_side": "right", "padding_value": 0.0, "dither": 0.0},
    "return_attention_mask": True,
}
HEARD: Mapping[str, Any] = {
    **SPECTRA,
    **{"feature_extractor_type": "Qwen3ASRFeatureExtractor", "n_window": 50, "min_length": 8000},
}


def text_model(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Write a causal Qwen3 with its tied head, as plain transformers saves it."""
    from transformers import Qwen3Config

    options = {**_TRUNK, "rope_parameters": ROPE, "tie_word_embeddings": True, **changes}
    write_tokenizer(folder, _TEXT_TOKENS)
    return save_random(folder, Qwen3Config(**options), "Qwen3ForCausalLM", seed=seed)


def vision_model(folder: Path, *, seed: int = 1, theta: float = 1e6, **changes: Any) -> Path:
    """Write a Qwen3-VL with its head and its processors' files."""
    from transformers import Qwen3VLConfig

    rope = {**SEEN_ROPE, "rope_theta": theta}
    ids = write_tokenizer(folder, (*_TEXT_TOKENS, *VISION_TOKENS))
    config = Qwen3VLConfig(
        text_config={**_TRUNK, "rope_parameters": rope, **changes},
        vision_config=dict(_VISION),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    _write_image_processors(folder)
    return save_random(folder, config, "Qwen3VLForConditionalGeneration", seed=seed)


def asr(folder: Path, *, seed: int = 2, **changes: Any) -> Path:
    """Write a Qwen3-ASR with its head and its processor's file."""
    from transformers import Qwen3ASRConfig

    tokens = (*_TEXT_TOKENS, *VISION_TOKENS, *AUDIO_TOKENS)
    marks = dict(
        zip(("audio_bos_token", "audio_eos_token", "audio_token"), AUDIO_TOKENS, strict=True)
    )
    ids = write_tokenizer(folder, tokens, marks)
    config = Qwen3ASRConfig(
        text_config={
            **_TRUNK,
            **{"model_type": "qwen3", "rope_parameters": ROPE, "tie_word_embeddings": True},
            **changes,
        },
        audio_config=dict(_AUDIO),
        audio_token_id=ids["<|audio_pad|>"],
        pad_token_id=256,
        eos_token_id=[256],
    )
    processor = {"feature_extractor": HEARD, "processor_class": "Qwen3ASRProcessor"}
    _write(folder / "processor_config.json", processor)
    return save_random(folder, config, "Qwen3ASRForConditionalGeneration", seed=seed)


def write_tokenizer(
    folder: Path, special: Sequence[str], marks: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Write a tokenizer of bytes, as Qwen's without merges; return the ids of its special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import Qwen2Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    Qwen2Tokenizer(
        tokenizer_object=tokenizer,
        pad_token=special[0],
        eos_token=special[0],
        unk_token=None,
        model_max_length=512,
        extra_special_tokens=dict(marks or {}),
    ).save_pretrained(folder)
    return {token: tokenizer.token_to_id(token) for token in special}


def _write_image_processors(folder: Path) -> None:
    """Write the files of Qwen3-VL's processors, with small images."""
    common = {**PICTURES, "processor_class": "Qwen3VLProcessor"}
    image = {**common, "image_processor_type": "Qwen2VLImageProcessorFast"}
    _write(folder / "preprocessor_config.json", image)
    video = {**common, "video_processor_type": "Qwen3VLVideoProcessor"}
    _write(folder / "video_preprocessor_config.json", video)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


STEPS = """
seed: 0
steps:
  encoder: {{as_encoder: {{model: {root}/text, mask_token: "<|repo_name|>"}}}}
  merged:
    merge:
      models: [{{model: $encoder}}, {{model: {root}/vision, part: text}}, {{model: {root}/audio, part: text}}]
      strategy: linear
{more}
"""
"""A recipe up to the merged trunk; `more` are lines of further steps."""


def write_specialists(root: Path) -> Path:
    """Write a text model, a vision model and a speech model into folders of these names."""
    text_model(root / "text")
    vision_model(root / "vision")
    asr(root / "audio")
    return root


def change_config(folder: Path, part: str = "", file: str = "config.json", **changes: Any) -> None:
    """Change options of a JSON file, or of one object in it; None takes an option out."""
    path = folder / file
    whole = json.loads(path.read_text("utf-8"))
    place = whole[part] if part else whole
    place.update(changes)
    for key in [key for key, value in changes.items() if value is None]:
        del place[key]
    _write(path, whole)
