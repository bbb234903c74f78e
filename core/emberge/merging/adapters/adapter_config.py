"""An adapter's adapter_config.json, and the options in it that are refused by name; loads no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.model_folder import read_json

CONFIG = "adapter_config.json"
# Initialisations after which the trained factors alone determine the layer. The rest (PiSSA, OLoRA, CorDA,
# LoftQ, LoRA-GA) take something out of the base's weights, which the adapter does not record.
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
# Options of its training; the tensors are the outcome.
_OF_TRAINING = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "revision", "peft_version", "peft_type"),
        *("task_type", "inference_mode", "lora_dropout", "target_modules", "exclude_modules"),
        *("layers_to_transform", "layers_pattern", "megatron_config", "megatron_core"),
        *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config"),
        *("runtime_config", "qalora_group_size", "ensure_weight_tying", "bias"),
    }
)
_READ = frozenset(
    {
        *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora"),
        *("fan_in_fan_out", "modules_to_save", "lora_bias", "init_lora_weights"),
        "trainable_token_indices",
    }
)
_INSTEAD = "fold it into its base with the library that trained it and merge the whole model"


@dataclass(frozen=True)
class AdapterConfig:
    """A LoRA adapter's settings, of those that decide its weights. Patterns are matched to modules' names."""

    path: Path
    rank: int
    alpha: float
    base: str | None = None
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    root_scaled: bool = False
    magnitudes: bool = False
    transposed: bool = False
    saved_modules: tuple[str, ...] = ()
    tokens: tuple[int, ...] | Mapping[str, tuple[int, ...]] = ()
    task: str | None = None

    def rank_of(self, module: str) -> int:
        """Return the rank that a module should have."""
        return int(_match_pattern(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str, rank: int) -> float:
        """Return the factor of B A: alpha / r, or alpha / √r of a rank-stabilised adapter."""
        alpha = float(_match_pattern(self.alpha_pattern, module, self.alpha))
        return alpha / (math.sqrt(rank) if self.root_scaled else rank)

    def saves(self, module: str) -> bool:
        """Return whether a module, or one around it, is saved whole."""
        words = module.split(".")
        around = [".".join(words[: n + 1]) for n in range(len(words))]
        return any(name.endswith(self.saved_modules) for name in around)

    def tokens_of(self, module: str) -> tuple[int, ...]:
        """Return the rows of a table of embeddings that were trained."""
        if not isinstance(self.tokens, Mapping):
            return self.tokens
        found = (v for name, v in self.tokens.items() if f".{module}".endswith(f".{name}"))
        return next(found, ())


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read and judge an adapter's settings.

    Raises:
        CheckpointError: for another kind of adapter than LoRA, and for options that cannot be merged as
            weights or are not known.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder}: is no adapter: it has no {CONFIG}")
    config = read_json(path)
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: an adapter's config must be a mapping")
    kind = config.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{path}: adapters of type {kind} are not merged; {_INSTEAD}")
    _refuse_unsupported(path, config)
    try:
        return _build_config(path, config)
    except (TypeError, ValueError, AttributeError, re.error) as error:
        raise CheckpointError(f"{path}: holds a value of a wrong kind ({error})") from None


def _refuse_unsupported(path: Path, config: Mapping[str, Any]) -> None:
    start = config.get("init_lora_weights")
    if not any(start is plain or start == plain for plain in _PLAIN_STARTS):
        raise CheckpointError(
            f"{path}: init_lora_weights is {start!r}, which takes part of the base's weights away; save it "
            "as a plain adapter (path_initial_model_for_weight_conversion), or " + _INSTEAD
        )
    for option, value in config.items():
        if option not in _READ | _OF_TRAINING and value not in (None, False, [], {}, ""):
            raise CheckpointError(f"{path}: the option '{option}' is not supported; {_INSTEAD}")


def _build_config(path: Path, config: Mapping[str, Any]) -> AdapterConfig:
    tokens = config.get("trainable_token_indices") or ()
    base = config.get("base_model_name_or_path")
    return AdapterConfig(
        path,
        rank=int(config.get("r", 8)),
        alpha=float(config.get("lora_alpha", 8)),
        base=str(base) if base else None,
        rank_pattern={
            _require_pattern(k): int(v) for k, v in (config.get("rank_pattern") or {}).items()
        },
        alpha_pattern={
            _require_pattern(k): float(v) for k, v in (config.get("alpha_pattern") or {}).items()
        },
        root_scaled=config.get("use_rslora") is True,
        magnitudes=config.get("use_dora") is True,
        transposed=config.get("fan_in_fan_out") is True,
        saved_modules=tuple(str(name) for name in config.get("modules_to_save") or ()),
        tokens={str(k): tuple(map(int, v)) for k, v in tokens.items()}
        if isinstance(tokens, dict)
        else tuple(map(int, tokens)),
        task=config.get("task_type"),
    )


def _require_pattern(pattern: str) -> str:
    re.compile(pattern)
    return pattern


def _match_pattern(pattern: Mapping[str, float], module: str, otherwise: float) -> float:
    """Return the value of the first pattern that a module's name ends with, at a dot or as a whole."""
    for name, value in pattern.items():
        if re.match(rf"(?:.*\.)?(?:{name})$", module):
            return value
    return otherwise
