"""Models for one more kind of input: a text trunk with a tower and a projector."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emberge import CheckpointError
from emberge.merging import Tokenizer
from emberge.model_folder import Checkpoint, read_object
from emberge.tensor_files import TensorSpec
from emberge.tensor_names import TensorNames
from emberge_encoder import build_config

TowerKind = Literal["vision", "audio"]


@dataclass(frozen=True, slots=True)
class _Family:
    """Names that a model family gives its tower: in tensors, in its config, and as special tokens.

    `tokens` maps a processor's name for a token to the config option that has its id. `marks` are tokens that
    have no id in any config; the tokenizer's config may name them.
    """

    model_type: str
    display_name: str
    config_key: str
    width_key: str
    tower_prefixes: tuple[str, ...]
    tokens: Mapping[str, str]
    marks: Mapping[str, str]


_FAMILY_BY_TOWER: Mapping[TowerKind, _Family] = {
    "vision": _Family(
        model_type="qwen3_vl",
        display_name="Qwen3-VL",
        config_key="vision_config",
        width_key="out_hidden_size",
        tower_prefixes=("visual.",),
        tokens={
            "image_token": "image_token_id",
            "video_token": "video_token_id",
            "vision_bos_token": "vision_start_token_id",
            "vision_eos_token": "vision_end_token_id",
        },
        marks={},
    ),
    "audio": _Family(
        model_type="qwen3_asr",
        display_name="Qwen3-ASR",
        config_key="audio_config",
        width_key="output_dim",
        tower_prefixes=("audio_tower.", "multi_modal_projector."),
        tokens={"audio_token": "audio_token_id"},
        marks={"audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>"},
    ),
}


@dataclass(frozen=True)
class Specialist:
    """A model with a tower for one more kind of input, read from its config, tokenizer and headers.

    Raises:
        CheckpointError: if the model has no such tower.
    """

    kind: TowerKind
    checkpoint: Checkpoint

    def __post_init__(self) -> None:
        model_type = self.checkpoint.config.get("model_type")
        family = _FAMILY_BY_TOWER[self.kind]
        if model_type != family.model_type or not self.checkpoint.config.get(family.config_key):
            raise CheckpointError(
                f"{self.checkpoint.folder}: is a '{model_type}' without the {self.kind} tower that is asked "
                f"of it; name a {family.display_name} as transformers loads it ('{family.model_type}', with "
                f"{family.config_key})"
            )
        if self.checkpoint.has_weights and not self.tower:
            raise CheckpointError(
                f"{self.checkpoint.folder}: has no tensor of the {self.kind} tower "
                f"({family.tower_prefixes[0]}…); get the whole model"
            )

    @functools.cached_property
    def config(self) -> Any:
        """The config object of transformers."""
        return build_config(self.checkpoint.trunk, self.checkpoint.config)

    @property
    def tower_config(self) -> dict[str, Any]:
        """The tower's part of the config, with the class's defaults."""
        # As saved inside a composite config: without the keys that every config has.
        config: dict[str, Any] = self.config.to_diff_dict()[_FAMILY_BY_TOWER[self.kind].config_key]
        return dict(config)

    @property
    def width(self) -> int:
        """The size of the projector's output vectors, which the trunk reads."""
        return int(self.tower_config[_FAMILY_BY_TOWER[self.kind].width_key])

    @functools.cached_property
    def trunk(self) -> TensorNames:
        """The text trunk, which is not part of the result."""
        return self.checkpoint.tensor_names.select_text_trunk()

    @functools.cached_property
    def tower(self) -> dict[str, TensorSpec]:
        """The tensors of tower and projector by canonical name, sorted."""
        starts = _FAMILY_BY_TOWER[self.kind].tower_prefixes
        tower_names = sorted(name for name in self.trunk.left_out if name.startswith(starts))
        return {name: self.checkpoint.tensor_names.specs[name] for name in tower_names}

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, loaded from its files.

        Raises:
            CheckpointError: if the model has no tokenizer.
        """
        tokenizer = Tokenizer.read(self.checkpoint)
        if tokenizer is None:
            raise CheckpointError(
                f"{self.checkpoint.folder}: has no tokenizer.json, by which its special tokens would be known"
            )
        return tokenizer

    @functools.cached_property
    def tokens(self) -> dict[str, str]:
        """The special tokens of the kind, by their names in processors.

        Raises:
            CheckpointError: if the tokenizer lacks a token.
        """
        family, tokenizer = _FAMILY_BY_TOWER[self.kind], self.tokenizer
        named = _read_named_tokens(tokenizer.folder / "tokenizer_config.json")
        tokens_by_name: dict[str, str] = {}
        for name, option in family.tokens.items():
            number = int(getattr(self.config, option))
            if number not in tokenizer.texts:
                raise CheckpointError(
                    f"{tokenizer.folder}: its tokenizer has no token with the id {number}, which config.json "
                    f"gives as {option}; get the tokenizer of this model"
                )
            tokens_by_name[name] = tokenizer.texts[number]
        for name, usual in family.marks.items():
            token = named.get(name, usual)
            if token not in tokenizer.tokens:
                raise CheckpointError(
                    f"{tokenizer.folder}: its tokenizer has no token '{token}' ({name}); get the tokenizer "
                    "of this model"
                )
            tokens_by_name[name] = token
        return tokens_by_name


def _read_named_tokens(path: Path) -> dict[str, str]:
    """Return the named tokens of a tokenizer's config, from the keys of all releases of transformers."""
    content = read_object(path) if path.is_file() else {}
    named = dict(content)
    for key in ("extra_special_tokens", "model_specific_special_tokens"):
        key_tokens = content.get(key)
        named |= key_tokens if isinstance(key_tokens, dict) else {}
    return {name: token for name, token in named.items() if isinstance(token, str)}
