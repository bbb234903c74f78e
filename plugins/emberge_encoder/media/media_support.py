"""Kinds of media that a folder lists, with the settings of their processors.

Since release 6 of sentence-transformers, sentence_bert_config.json lists the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import CheckpointError, MediaKind
from emberge.model_folder import read_object, read_trunk_settings

from emberge_encoder.layout import FORWARD, Layout

# Options of a chat template that are the tokenizer's.
_TOKENIZER_OPTIONS = ("padding", "truncation", "max_length", "return_tensors")
# Kinds of media by the model types of transformers' native classes.
KINDS_BY_MODEL_TYPE: Mapping[str, tuple[MediaKind, ...]] = {
    "qwen3_vl": ("image",),
    "qwen3_asr": ("audio",),
    "qwen3_omni_moe_thinker": ("image", "audio"),
}
_PROCESSOR_BY_KIND: Mapping[MediaKind, str] = {
    "image": "image_processor",
    "audio": "feature_extractor",
}


@dataclass(frozen=True)
class MediaSupport:
    """Kinds of media that a model reads, with its family, config, and the settings of their processors."""

    family: str
    kinds: tuple[MediaKind, ...]
    folder: Path
    config: Mapping[str, Any]
    processors: Mapping[MediaKind, Mapping[str, Any]]

    def find_token_id(self, kind: MediaKind) -> int:
        """Return the id of the placeholder token of a kind of media."""
        return int(self.config[f"{kind}_token_id"])


def read_media_support(layout: Layout, config: Mapping[str, Any]) -> MediaSupport | None:
    """Return the media that the model of a folder reads; None if it reads text alone.

    Raises:
        CheckpointError: if the folder lists media, but lacks a token or settings for them.
    """
    family = str(config.get("model_type"))
    settings = {} if layout.bare else read_trunk_settings(layout.trunk_folder)
    modality_config = settings.get("modality_config") or {}
    kinds = tuple(kind for kind in KINDS_BY_MODEL_TYPE.get(family, ()) if kind in modality_config)
    if not kinds or "message" not in modality_config:
        return None
    folder = layout.trunk_folder
    for kind in kinds:
        if config.get(f"{kind}_token_id") is None:
            raise CheckpointError(f"{folder}/config.json: has no {kind}_token_id; add it")
    if "image" in kinds and config.get("vision_start_token_id") is None:
        raise CheckpointError(
            f"{folder}/config.json: has no vision_start_token_id, by which positions of images are found; "
            "add it at the top"
        )
    return MediaSupport(
        family,
        kinds,
        folder,
        config,
        {kind: _read_processor_settings(folder, kind) for kind in kinds},
    )


def _read_processor_settings(folder: Path, kind: MediaKind) -> Mapping[str, Any]:
    """Return the settings of the processor of a kind, in either of the files that transformers writes."""
    processor_file, preprocessor_file = (
        folder / "processor_config.json",
        folder / "preprocessor_config.json",
    )
    settings = (
        read_object(processor_file).get(_PROCESSOR_BY_KIND[kind])
        if processor_file.is_file()
        else None
    )
    if not settings and preprocessor_file.is_file():
        settings = read_object(preprocessor_file)
    if not settings:
        raise CheckpointError(
            f"{folder}: lists {kind} in modality_config, and has no {_PROCESSOR_BY_KIND[kind]} in "
            "processor_config.json; copy it from the model that it came from"
        )
    return dict(settings)


def refuse_other_media(layout: Layout, readable_kinds: Sequence[str] = ()) -> None:
    """Refuse a folder whose inputs do not reach the transformer as messages or texts.

    `readable_kinds` are the media that the model reads; processors of other media are refused.

    Raises:
        CheckpointError: if they do not; the message has the key of sentence_bert_config.json.
    """
    path = f"{layout.trunk_folder}: sentence_bert_config.json"
    settings = read_trunk_settings(layout.trunk_folder)
    modalities = settings.get("modality_config") or {"text": FORWARD}
    other_modalities = sorted(set(modalities) - {"text", "message"})
    if "message" in modalities and other_modalities and not readable_kinds:
        raise CheckpointError(
            f"{path} has every text formatted by the chat template of a processor of "
            f"{other_modalities[0]}, and text_encoder has a tokenizer alone; to train it on plain text, take "
            "'message' out of modality_config, which changes its embeddings"
        )
    output = settings.get("module_output_name") or "token_embeddings"
    for kind in ("message" if "message" in modalities else "text", *readable_kinds):
        entry = modalities.get(kind)
        method = {k: v for k, v in entry.items() if k != "format"} if entry else entry
        if method != FORWARD or output != "token_embeddings":
            raise CheckpointError(
                f"{path} sends a {kind} through {entry} to {output}, and text_encoder takes a transformer's "
                "last hidden state; use a model of text alone"
            )
    processing = settings.get("processing_kwargs") or {}
    options = [*(processing.get("text") or {}), *(processing.get("common") or {})]
    options += [
        name for name in processing.get("chat_template") or {} if name in _TOKENIZER_OPTIONS
    ]
    if options:
        raise CheckpointError(
            f"{path} gives the tokenizer '{options[0]}' (processing_kwargs), which text_encoder does not; "
            "take it out, which may change the model's embeddings"
        )
