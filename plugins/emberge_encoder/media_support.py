"""The media that a model folder reads, from its configs alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import CheckpointError, MediaKind
from emberge.model_folder import read_object, read_trunk_settings

from emberge_encoder.layout import Layout

# Kinds of media by the model types of transformers' native classes.
FAMILIES: Mapping[str, tuple[MediaKind, ...]] = {
    "qwen3_vl": ("image",),
    "qwen3_asr": ("audio",),
    "qwen3_omni_moe_thinker": ("image", "audio"),
}
_PROCESSORS: Mapping[MediaKind, str] = {"image": "image_processor", "audio": "feature_extractor"}


@dataclass(frozen=True)
class MediaSupport:
    """Kinds of media that a model reads, with its family, config, and the settings of their processors."""

    family: str
    kinds: tuple[MediaKind, ...]
    folder: Path
    config: Mapping[str, Any]
    processors: Mapping[MediaKind, Mapping[str, Any]]

    def token_id(self, kind: MediaKind) -> int:
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
    kinds = tuple(kind for kind in FAMILIES.get(family, ()) if kind in modality_config)
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
        read_object(processor_file).get(_PROCESSORS[kind]) if processor_file.is_file() else None
    )
    if not settings and preprocessor_file.is_file():
        settings = read_object(preprocessor_file)
    if not settings:
        raise CheckpointError(
            f"{folder}: lists {kind} in modality_config, and has no {_PROCESSORS[kind]} in "
            "processor_config.json; copy it from the model that it came from"
        )
    return dict(settings)
