"""Tiny real models that read images and clips, as folders for SentenceTransformer, and drawn media."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.support.tiny import _tokenizer_json, save_random

Family = Literal["qwen3_vl", "qwen3_asr", "qwen3_omni_moe_thinker"]
FAMILIES: tuple[Family, ...] = ("qwen3_vl", "qwen3_asr", "qwen3_omni_moe_thinker")
RATE = 16_000
PATCH, MERGE = 4, 2
# A side of an image is a multiple of this, or it is resized.
SIDE = PATCH * MERGE
KINDS: dict[str, tuple[str, ...]] = {
    "qwen3_vl": ("image",),
    "qwen3_asr": ("audio",),
    "qwen3_omni_moe_thinker": ("image", "audio"),
}
_SPECIAL = {
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "audio_token": "<|audio_pad|>",
}
# Contents alone: text as it is, a medium between its marks.
TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}{%- else -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part['type'] == 'audio' -%}{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}"
    "{%- else -%}{{- part['text'] -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{%- endfor -%}"
)


@functools.cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    plain = json.loads(_tokenizer_json())
    plain["post_processor"] = None  # as Qwen's: nothing around a text
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(plain)),
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
        model_max_length=512,
        extra_special_tokens=_SPECIAL,
    )


def write_media_tokenizer(folder: Path, padding_side: str = "right") -> Any:
    """Write the tokenizer with the special tokens of media, and the template; return it."""
    tokenizer = _tokenizer()
    tokenizer.padding_side = padding_side
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return tokenizer


def token_ids(tokenizer: Any) -> dict[str, int]:
    """Ids of the special tokens by their names."""
    return {name: tokenizer.convert_tokens_to_ids(token) for name, token in _SPECIAL.items()}


def text_config(vocabulary: int, layers: int = 2, **changes: Any) -> dict[str, Any]:
    """A tiny Qwen3 text stack, bidirectional."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
        "is_causal": False,
        **changes,
    }


def vision_config(hidden: int = 32) -> dict[str, Any]:
    """A tiny vision tower of the Qwen3 families."""
    return {
        **{"depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2},
        **{"patch_size": PATCH, "spatial_merge_size": MERGE, "temporal_patch_size": 2},
        **{"num_position_embeddings": 64, "out_hidden_size": hidden, "in_channels": 3},
        "deepstack_visual_indexes": [0],
    }


def audio_config(family: str, hidden: int = 32) -> dict[str, Any]:
    """A tiny audio tower of the Qwen3 families."""
    longest = "max_position_embeddings" if family == "qwen3_asr" else "max_source_positions"
    return {
        **{"num_mel_bins": 128, "encoder_layers": 1, "encoder_attention_heads": 2},
        **{"encoder_ffn_dim": 32, "d_model": 16, "output_dim": hidden, "n_window": 50},
        **{"n_window_infer": 800, "downsample_hidden_size": 8, "conv_chunksize": 500},
        longest: 13 if family == "qwen3_asr" else 1500,
    }


def media_config(family: Family, tokenizer: Any, layers: int = 2) -> Any:
    """The config of a tiny model of a family."""
    from transformers import AutoConfig

    ids = token_ids(tokenizer)
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    mrope = {**rope, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    size = len(tokenizer)
    image = {"image_token_id": ids["image_token"], "video_token_id": ids["video_token"]}
    vision = {
        "vision_start_token_id": ids["vision_bos_token"],
        "vision_end_token_id": ids["vision_eos_token"],
    }
    if family == "qwen3_vl":
        text = text_config(size, layers, rope_parameters=mrope)
        return AutoConfig.for_model(
            family, text_config=text, vision_config=vision_config(), **image, **vision
        )
    if family == "qwen3_asr":
        return AutoConfig.for_model(
            family,
            text_config={"model_type": "qwen3", **text_config(size, layers, rope_parameters=rope)},
            audio_config=audio_config(family),
            audio_token_id=ids["audio_token"],
        )
    dense = {"num_experts": 0, "mlp_only_layers": list(range(layers))}
    text = text_config(size, layers, rope_parameters=mrope, **dense)
    return AutoConfig.for_model(
        family,
        text_config=text,
        vision_config=vision_config(),
        audio_config=audio_config(family),
        **image,
        **vision,
        audio_token_id=ids["audio_token"],
        audio_start_token_id=ids["audio_bos_token"],
    )


def write_processors(folder: Path, family: Family, **image: Any) -> None:
    """Write the configs of a family's stock processors."""
    classes = {
        "qwen3_vl": "Qwen3VLProcessor",
        "qwen3_asr": "Qwen3ASRProcessor",
        "qwen3_omni_moe_thinker": "Qwen3OmniMoeProcessor",
    }
    config: dict[str, Any] = {"processor_class": classes[family]}
    sizes = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2}
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    size = {"shortest_edge": SIDE * SIDE, "longest_edge": 64 * SIDE * SIDE}
    if "image" in KINDS[family]:
        config["image_processor"] = {
            **{"image_processor_type": "Qwen2VLImageProcessor", "size": size},
            **sizes,
            **half,
            **image,
        }
        config["video_processor"] = {
            **{"video_processor_type": "Qwen3VLVideoProcessor", "size": size},
            **sizes,
            **half,
        }
    if "audio" in KINDS[family]:
        kind = "Qwen3ASR" if family == "qwen3_asr" else "Whisper"
        config["feature_extractor"] = {
            **{"feature_extractor_type": f"{kind}FeatureExtractor", "feature_size": 128},
            **{"sampling_rate": RATE, "hop_length": 160, "n_fft": 400, "chunk_length": 30},
        }
    (folder / "processor_config.json").write_text(json.dumps(config, indent=2))


def write_media_modules(folder: Path, kinds: Sequence[str], hidden: int = 32) -> None:
    """Make a SentenceTransformers folder of a transformers one, in which every input is a message."""
    classes = {
        "": "base.modules.transformer.Transformer",
        "1_Pooling": "sentence_transformer.modules.pooling.Pooling",
        "2_Normalize": "base.modules.normalize.Normalize",
    }
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{cls}"}
        for i, (path, cls) in enumerate(classes.items())
    ]
    (folder / "modules.json").write_text(json.dumps(listed, indent=2))
    way = {"method": "forward", "method_output_name": "last_hidden_state"}
    settings = {
        "transformer_task": "feature-extraction",
        "modality_config": {
            **dict.fromkeys(("text", *kinds), way),
            "message": {**way, "format": "structured"},
        },
        "module_output_name": "token_embeddings",
    }
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings, indent=2))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"})
    )
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"embedding_dimension": hidden, "pooling_mode": "mean", "include_prompt": True})
    )
    (folder / "2_Normalize").mkdir(exist_ok=True)


def media_model(
    folder: Path,
    family: Family,
    *,
    seed: int = 0,
    padding_side: str = "right",
    layers: int = 2,
    **image: Any,
) -> Path:
    """Write a tiny random model of a family; `image` changes its image processor."""
    folder.mkdir(parents=True, exist_ok=True)
    config = media_config(family, write_media_tokenizer(folder, padding_side), layers)
    # Initial weights are so small that media would hardly count.
    save_random(folder, config, seed=seed, noise=0.1)
    path = folder / "config.json"
    saved = json.loads(path.read_text())
    if "image" in KINDS[family]:
        # The thinker's positions read it at the top.
        saved["vision_start_token_id"] = config.vision_start_token_id
    path.write_text(json.dumps(saved, indent=2))
    write_processors(folder, family, **image)
    write_media_modules(folder, KINDS[family])
    return folder


def drawing(seed: int, width: int = 4 * SIDE, height: int = 3 * SIDE) -> Any:
    """A random drawing as a Pillow image."""
    from PIL import Image, ImageDraw

    random = np.random.default_rng(seed)
    image = Image.new("RGB", (width, height), tuple(random.integers(0, 256, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for _ in range(3):
        x, y = random.integers(0, width - 4), random.integers(0, height - 4)
        box = [int(x), int(y), int(x) + 3 + width // 3, int(y) + 3 + height // 3]
        draw.ellipse(box, fill=tuple(random.integers(0, 256, 3).tolist()))
    return image


def tone(hertz: float, seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    """A tone as samples."""
    time = np.arange(int(seconds * rate)) / rate
    return np.asarray(0.5 * np.sin(2 * np.pi * hertz * time), np.float32)
