"""Rotary positions of a composed trunk: their base, and the shares of time, height and width."""

from __future__ import annotations

from typing import Any, Literal

from emberge import CheckpointError
from emberge.model_folder import Checkpoint, rope_options

from emberge_bidirlm.compose.specialist import Specialist
from emberge_bidirlm.mask_token import text_config

RopeFrom = Literal["text", "vision"]


def rope_parameters(
    text: Checkpoint, vision: Specialist | None, rope_from: RopeFrom | None
) -> dict[str, Any]:
    """Return the rotary positions of the composed trunk.

    The base is the text model's or, by choice, the vision model's; the sections of time, height and width
    are the vision model's. A text has the same position in all three, so its embedding is the trunk's own.

    Raises:
        CheckpointError: for a config that leaves the base to its class, positions that are scaled, and
            sections that do not fill a head.
    """
    _require_plain(text)
    rope: dict[str, Any] = dict(text_config(text).rope_parameters)
    if vision is None:
        return rope
    _require_plain(vision.checkpoint)
    seen: dict[str, Any] = dict(vision.config.get_text_config().rope_parameters)
    sections = seen.get("mrope_section")
    if not sections:
        raise CheckpointError(
            f"{vision.checkpoint.folder}: its text config has no mrope_section, by which images have places; "
            "get its config.json again"
        )
    half = int(text_config(text).head_dim) // 2
    if sum(sections) != half:
        raise CheckpointError(
            f"{vision.checkpoint.folder}: its mrope_section {list(sections)} adds up to {sum(sections)}, and "
            f"half a head of {text.folder} has {half}; choose models of one family"
        )
    theta = seen["rope_theta"] if rope_from == "vision" else rope["rope_theta"]
    return {
        **{"rope_type": "default", "rope_theta": theta},
        **{"mrope_interleaved": True, "mrope_section": list(sections)},
    }


def _require_plain(checkpoint: Checkpoint) -> None:
    found = rope_options(checkpoint.config)
    if "rope_theta" not in found:
        raise CheckpointError(
            f"{checkpoint.trunk / 'config.json'}: has no rope_theta, and the classes' defaults differ; write "
            "the one that the model was trained with into it"
        )
    if found["rope_type"] != "default":
        raise CheckpointError(
            f"{checkpoint.trunk / 'config.json'}: its positions are scaled (rope_type "
            f"'{found['rope_type']}'), which no composed model has; choose a model without that"
        )
