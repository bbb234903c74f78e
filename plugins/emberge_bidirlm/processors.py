"""Processors of a composed model, which read images and sound, and its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.model_folder import read_object

from emberge_bidirlm.specialist import Specialist, TowerKind

_PROCESSOR_FILE = "processor_config.json"
# By kind: the parts of a processor, and the file of older releases that has each alone.
_FILE_BY_PART: Mapping[TowerKind, Mapping[str, str]] = {
    "vision": {
        "image_processor": "preprocessor_config.json",
        "video_processor": "video_preprocessor_config.json",
    },
    "audio": {"feature_extractor": "preprocessor_config.json"},
}
REPLACED_FILES = (
    *(_PROCESSOR_FILE, "preprocessor_config.json", "video_preprocessor_config.json"),
    *("chat_template.json", "chat_template.jinja"),
)
"""Files of a text model's folder that a composed model replaces."""
_SPECTRUM_KEYS = (
    *("feature_size", "hop_length", "chunk_length", "n_fft", "sampling_rate", "padding_side"),
    *("padding_value", "dither"),
)


def build_processor_config(
    specialists: Mapping[TowerKind, Specialist], processor: str
) -> dict[str, Any]:
    """Return the content of processor_config.json for the processor class `processor` of transformers.

    Raises:
        CheckpointError: if a specialist lacks the files of its processor.
    """
    content: dict[str, Any] = {"processor_class": processor}
    for specialist in specialists.values():
        content |= {part: _read_part(specialist, part) for part in _FILE_BY_PART[specialist.kind]}
    if len(specialists) == 2:
        content["feature_extractor"] = _make_spectrum_config(
            specialists["audio"], content["feature_extractor"]
        )
    return content


def _read_part(specialist: Specialist, part: str) -> dict[str, Any]:
    folder, file_name = specialist.checkpoint.trunk, _FILE_BY_PART[specialist.kind][part]
    for name in (_PROCESSOR_FILE, file_name):
        content = read_object(folder / name) if (folder / name).is_file() else {}
        settings = content.get(part) if name == _PROCESSOR_FILE else content
        if isinstance(settings, dict) and settings:
            return {key: value for key, value in settings.items() if key != "processor_class"}
    raise CheckpointError(
        f"{folder}: has no {part}, neither in {_PROCESSOR_FILE} nor as {file_name}; get the whole folder"
    )


def _make_spectrum_config(audio: Specialist, extractor: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of Whisper's feature extractor, which the thinker uses, with Qwen3-ASR's values.

    For clips of half a second or more, Whisper's spectrum equals Qwen3-ASR's; Qwen3-ASR pads shorter clips to
    half a second first.
    """
    spectrum_options = {key: extractor[key] for key in _SPECTRUM_KEYS if key in extractor}
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        **spectrum_options,
        "feature_size": audio.tower_config["num_mel_bins"],
        "return_attention_mask": True,
    }


def list_token_names(specialists: Mapping[TowerKind, Specialist]) -> dict[str, str]:
    """Return the special tokens by the attribute names that processors read from a tokenizer."""
    return {
        name: token
        for specialist in specialists.values()
        for name, token in specialist.tokens.items()
    }


def build_chat_template(tokens: Mapping[str, str]) -> str:
    """Return a template that prints the contents of messages and nothing else.

    SentenceTransformers turns every input into a message. With this template, a message with a text becomes
    the text itself, with its prompt before it.
    """
    kinds = {
        "image": ("vision_bos_token", "image_token", "vision_eos_token"),
        "video": ("vision_bos_token", "video_token", "vision_eos_token"),
        "audio": ("audio_bos_token", "audio_token", "audio_eos_token"),
    }
    parts = "".join(
        f"{{%- elif part.type == '{kind}' %}}{{{{- '{''.join(tokens[name] for name in names)}' }}}}"
        for kind, names in kinds.items()
        if names[1] in tokens
    )
    return (
        "{%- for message in messages %}"
        "{%- if message.content is string %}{{- message.content }}"
        "{%- else %}{%- for part in message.content %}"
        "{%- if part.type == 'text' %}{{- part.text }}"
        f"{parts}{{%- endif %}}{{%- endfor %}}{{%- endif %}}{{%- endfor %}}"
    )


def build_tokenizer_config(path: Path, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of tokenizer_config.json with these token names and without a chat template."""
    content = read_object(path) if path.is_file() else {}
    content.pop("chat_template", None)
    return {**content, **names}
