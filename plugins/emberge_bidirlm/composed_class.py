"""Classes of transformers for a composed model: their configs, tensor names and rotary positions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from emberge import CheckpointError
from emberge.model_folder import Checkpoint, TrunkConfig

from emberge_bidirlm.as_encoder import load_trunk_config
from emberge_bidirlm.specialist import Specialist, TowerKind

TRUNK_PREFIX = "language_model."
RopeFrom = Literal["text", "vision"]
"""Model whose base of rotary positions the result has."""
_TRUNK_KEYS = (
    *("attention_bias", "attention_dropout", "head_dim", "hidden_act", "hidden_size"),
    *("initializer_range", "intermediate_size", "max_position_embeddings", "num_attention_heads"),
    *("num_hidden_layers", "num_key_value_heads", "rms_norm_eps"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
)
# What the thinker calls the parts of mergers and of the audio projector.
_MERGER_NAME = re.compile(r"^visual\.(merger|deepstack_merger_list\.\d+)\.")
_MERGER_PARTS = {"norm": "ln_q", "linear_fc1": "mlp.0", "linear_fc2": "mlp.2"}
_PROJECTOR_PARTS = {"linear_1": "proj1", "linear_2": "proj2"}
# The thinker's processor and positions count sound in windows of this many frames.
_WINDOW_FRAMES = 50
# Positions that a second of a video takes; an image and a clip take none of it.
_POSITIONS_A_SECOND = 13


@dataclass(frozen=True)
class ComposedClass:
    """The class of a composed model, given its specialists."""

    model_type: str
    architecture: str
    processor: str
    specialists: Mapping[TowerKind, Specialist]

    def rename_tensor(self, canonical: str) -> str:
        """Return the class's name for a tensor of a specialist's tower."""
        if len(self.specialists) == 1:
            return canonical
        if _MERGER_NAME.match(canonical):
            path, part, parameter = canonical.rsplit(".", 2)
            path = path.replace("deepstack_merger_list", "merger_list")
            return f"{path}.{_MERGER_PARTS[part]}.{parameter}"
        if canonical.startswith("multi_modal_projector."):
            _, layer, parameter = canonical.split(".", 2)
            return f"audio_tower.{_PROJECTOR_PARTS[layer]}.{parameter}"
        return canonical

    def build_config(self, text: Checkpoint, rope: Mapping[str, Any], rows: int) -> dict[str, Any]:
        """Return a bidirectional config.json's content with these rotary positions and embedding rows.

        Raises:
            CheckpointError: if the class cannot express the text model or a specialist.
        """
        trunk = _make_trunk_config(text) | {"rope_parameters": dict(rope), "vocab_size": rows}
        class_facts = {"model_type": self.model_type, "architectures": [self.architecture]}
        if len(self.specialists) == 1:
            (specialist,) = self.specialists.values()
            inner = specialist.config.get_text_config().model_type
            return {
                **specialist.checkpoint.config,
                **class_facts,
                "text_config": {**trunk, "model_type": inner},
            }
        return {**class_facts, **self._make_thinker_config(trunk)}

    def _make_thinker_config(self, trunk: Mapping[str, Any]) -> dict[str, Any]:
        vision, audio = self.specialists["vision"], self.specialists["audio"]
        vision_config, audio_config = vision.tower_config, audio.tower_config
        if audio_config["n_window"] != _WINDOW_FRAMES:
            raise CheckpointError(
                f"{audio.checkpoint.folder}: its windows of sound have n_window "
                f"{audio_config['n_window']}, and "
                f"'{self.model_type}' counts by {_WINDOW_FRAMES}; compose it without 'vision'"
            )
        # It sizes a table of sine positions that is computed, not stored; both classes read the same rows.
        audio_config.pop("max_position_embeddings", None)
        start = audio.tokenizer.tokens[audio.tokens["audio_bos_token"]]
        end = audio.tokenizer.tokens[audio.tokens["audio_eos_token"]]
        return {
            "text_config": {
                **trunk,
                "model_type": "qwen3_omni_moe_text",
                # Dense: no layer has experts.
                "num_experts": 0,
                "mlp_only_layers": list(range(int(trunk["num_hidden_layers"]))),
            },
            "vision_config": {**vision_config, "model_type": "qwen3_omni_moe_vision_encoder"},
            "audio_config": {
                **audio_config,
                "model_type": "qwen3_omni_moe_audio_encoder",
                "max_source_positions": 1500,
            },
            "image_token_id": vision.config.image_token_id,
            "video_token_id": vision.config.video_token_id,
            # The class declares no such field, but reads it to place images.
            "vision_start_token_id": vision.config.vision_start_token_id,
            "vision_end_token_id": vision.config.vision_end_token_id,
            "audio_token_id": audio.config.audio_token_id,
            "audio_start_token_id": start,
            "audio_end_token_id": end,
            "position_id_per_seconds": _POSITIONS_A_SECOND,
            "tie_word_embeddings": False,
        }


def choose_class(specialists: Mapping[TowerKind, Specialist]) -> ComposedClass:
    """Return the composed model's class: a single specialist's own, or for two Qwen3-Omni's thinker."""
    if len(specialists) == 2:
        name = "Qwen3OmniMoe"
        return ComposedClass(
            "qwen3_omni_moe_thinker", f"{name}ThinkerModel", f"{name}Processor", specialists
        )
    if "vision" in specialists:
        return ComposedClass("qwen3_vl", "Qwen3VLModel", "Qwen3VLProcessor", specialists)
    return ComposedClass("qwen3_asr", "Qwen3ASRModel", "Qwen3ASRProcessor", specialists)


def _make_trunk_config(text: Checkpoint) -> dict[str, Any]:
    """Return the part of the text model's config that every composed class has, made bidirectional.

    Raises:
        CheckpointError: if the model has sliding-window attention, which the classes lack.
    """
    config = load_trunk_config(text).to_dict()
    if "sliding_attention" in (config.get("layer_types") or ()):
        raise CheckpointError(
            f"{text.folder}: some layers attend to a window alone, which no composed model does; choose a "
            "text model without use_sliding_window"
        )
    shared_keys = {key: config[key] for key in _TRUNK_KEYS if key in config}
    return {**shared_keys, "is_causal": False, "use_cache": False}


def compute_rope_parameters(
    text: Checkpoint, vision: Specialist | None, rope_from: RopeFrom | None
) -> dict[str, Any]:
    """Return the parameters of rotary positions for the composed trunk.

    The base comes from the text model or, by option, from the vision model. The sections of time, height and
    width come from the vision model. A text token has the same position in all three sections, so the
    embedding of a text is the same as the trunk's.

    Raises:
        CheckpointError: if a config has no base, if positions are scaled, or if sections do not fill a head.
    """
    _require_plain(text)
    rope: dict[str, Any] = dict(load_trunk_config(text).rope_parameters)
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
    half_width = int(load_trunk_config(text).head_dim) // 2
    if sum(sections) != half_width:
        raise CheckpointError(
            f"{vision.checkpoint.folder}: its mrope_section {list(sections)} adds up to {sum(sections)}, and "
            f"half a head of {text.folder} has {half_width}; choose models of one family"
        )
    theta = seen["rope_theta"] if rope_from == "vision" else rope["rope_theta"]
    return {
        **{"rope_type": "default", "rope_theta": theta},
        **{"mrope_interleaved": True, "mrope_section": list(sections)},
    }


def _require_plain(checkpoint: Checkpoint) -> None:
    rope = TrunkConfig(checkpoint.config).rope
    if "rope_theta" not in rope:
        raise CheckpointError(
            f"{checkpoint.trunk / 'config.json'}: has no rope_theta, and the classes' defaults differ; write "
            "the one that the model was trained with into it"
        )
    if rope["rope_type"] != "default":
        raise CheckpointError(
            f"{checkpoint.trunk / 'config.json'}: its positions are scaled (rope_type "
            f"'{rope['rope_type']}'), which no composed model has; choose a model without that"
        )
