"""A LoRA adapter's settings, and its base: matched by content if the adapter records a hash, else by name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from emberge.errors import CheckpointError
from emberge.model_folder import ADAPTER_CONFIG, Checkpoint, find_model_name, read_object
from emberge.tensor_files import RemoteFile, read_provenance
from emberge.tensor_names import TensorNames, is_buffer

ORIGIN_KEY = "adapter_of"
# Tensors up to this size are hashed whole, of larger ones 16 pages spread evenly over them: any
# training moves all of a tensor, and a look at a base takes no longer than reading its header.
_WHOLE_HASH_BYTES = 64 << 10
_PAGE_COUNT, _PAGE_BYTES = 16, 4 << 10
# Initialisations after which the trained factors alone determine the layer. The rest (PiSSA, OLoRA, CorDA,
# LoftQ, LoRA-GA) take something out of the base's weights, which the adapter does not record.
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
# Options of its training; the tensors are the outcome.
_TRAINING_OPTIONS = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "revision", "peft_version", "peft_type"),
        *("task_type", "inference_mode", "lora_dropout", "target_modules", "exclude_modules"),
        *("layers_to_transform", "layers_pattern", "megatron_config", "megatron_core"),
        *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config"),
        *("runtime_config", "qalora_group_size", "ensure_weight_tying", "bias"),
    }
)
_READ_OPTIONS = frozenset(
    {
        *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora"),
        *("fan_in_fan_out", "modules_to_save", "init_lora_weights"),
    }
)
_UNSET_VALUES: tuple[object, ...] = (None, False, [], {}, "")
_FOLD_REMEDY = "fold it into its base with the library that trained it and merge the whole model"


@dataclass(frozen=True)
class AdapterConfig:
    """The settings of a LoRA adapter that decide its weights; patterns match the ends of modules' names."""

    path: Path
    rank: int
    alpha: float
    base: str | None = None
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    # peft's `use_rslora`, `use_dora` and `fan_in_fan_out` (the base's modules store [in, out]).
    root_scaled: bool = False
    magnitudes: bool = False
    transposed: bool = False

    def rank_of(self, module: str) -> int:
        """Return the rank that a module should have."""
        return int(_match_pattern(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str, rank: int) -> float:
        """Return the factor of a module's B A: alpha / r, or alpha / √r if the adapter is rank-stabilised."""
        alpha = float(_match_pattern(self.alpha_pattern, module, self.alpha))
        return alpha / (math.sqrt(rank) if self.root_scaled else rank)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read an adapter's settings, and refuse those that cannot be merged.

    Raises:
        CheckpointError: if the adapter is not a LoRA, or has options that are unknown or cannot be merged as
            weights.
    """
    path = folder / ADAPTER_CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder}: is no adapter: it has no {ADAPTER_CONFIG}")
    config = read_object(path)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{path}: adapters of type {kind} are not merged; {_FOLD_REMEDY}")
    _refuse_unsupported(path, config)
    try:
        return _build_config(path, config)
    except (TypeError, ValueError, AttributeError, re.error) as error:
        raise CheckpointError(f"{path}: holds a value of a wrong kind ({error})") from None


def _refuse_unsupported(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse unknown options, and options that change the base's own weights."""
    start = config.get("init_lora_weights")
    if not any(start is plain or start == plain for plain in _PLAIN_STARTS):
        raise CheckpointError(
            f"{path}: init_lora_weights is {start!r}, which takes part of the base's weights away; save it "
            "as a plain adapter (path_initial_model_for_weight_conversion), or " + _FOLD_REMEDY
        )
    for option, value in config.items():
        if option not in _READ_OPTIONS | _TRAINING_OPTIONS and value not in _UNSET_VALUES:
            raise CheckpointError(f"{path}: the option '{option}' is not supported; {_FOLD_REMEDY}")


def _build_config(path: Path, config: Mapping[str, Any]) -> AdapterConfig:
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


def hash_origin(names: TensorNames, checkpoint: Checkpoint) -> str | None:
    """Return a hash of a base's trunk: tensors' canonical names, shapes, dtypes, and samples of their bytes.

    Name prefixes, shards, the tokenizer, heads and modules after the trunk do not change the hash. It is None
    for weights on a server, as fetching the samples takes too long.
    """
    modules = tuple(filter(None, checkpoint.folder_by_prefix))
    hasher = xxhash.xxh3_128()
    with checkpoint.open_reader() as reader:
        for name, spec in sorted(names.specs.items()):
            if name in names.heads or is_buffer(name) or (modules and name.startswith(modules)):
                continue
            if RemoteFile.is_note(spec.file):
                return None
            hasher.update(repr((name, spec.shape, spec.dtype)).encode())
            for start, length in _sample_stretches(spec.nbytes):
                sample = bytearray(length)
                reader.read_bytes(spec, start, memoryview(sample))
                hasher.update(sample)
    return str(hasher.hexdigest())


def _sample_stretches(size: int) -> Iterator[tuple[int, int]]:
    """Yield (first byte, length) of the stretches to hash: of all bytes, or of evenly spread pages."""
    if size <= _WHOLE_HASH_BYTES:
        yield 0, size
        return
    for page in range(_PAGE_COUNT):
        yield (size - _PAGE_BYTES) * page // (_PAGE_COUNT - 1), _PAGE_BYTES


def describe_base(base: Checkpoint) -> dict[str, Any]:
    """Return the name and hash of the base that an adapter is made on, for the adapter's provenance.

    With it a merge can refuse a different base with the same name.
    """
    name = find_model_name(base.folder)
    return {ORIGIN_KEY: {"name": name, "hash": hash_origin(base.tensor_names, base)}}


def require_base(
    config: AdapterConfig, metadata: Mapping[str, str], names: TensorNames, checkpoint: Checkpoint
) -> None:
    """Refuse an adapter that was made on another base.

    Raises:
        CheckpointError: if it was; the message names both bases.
    """
    folder = config.path.parent
    record = (read_provenance(metadata) or {}).get(ORIGIN_KEY)
    if isinstance(record, Mapping) and record.get("hash"):
        if hash_origin(names, checkpoint) not in (None, record["hash"]):
            raise CheckpointError(
                f"{folder}: is an adapter of '{record.get('name')}', whose weights differ from those of "
                f"{checkpoint.folder}; name the base that it was made on"
            )
        return
    folder_base, adapter_base = find_model_name(checkpoint.folder), config.base
    if (
        adapter_base
        and _is_hub_id(folder_base)
        and _is_hub_id(adapter_base)
        and folder_base.lower() != adapter_base.lower()
    ):
        raise CheckpointError(
            f"{folder}: is an adapter of '{adapter_base}', and '{folder_base}' is another model; "
            f"name {adapter_base}, or correct base_model_name_or_path in adapter_config.json if the "
            "two are one"
        )


def describe_other_base(
    config: AdapterConfig, metadata: Mapping[str, str], base: Path
) -> str | None:
    """Return a warning if only the base's recorded name could be compared and it differs; else None."""
    record = (read_provenance(metadata) or {}).get(ORIGIN_KEY)
    recorded_name = (config.base or "").rstrip("/").rpartition("/")[2]
    if record or not recorded_name or recorded_name == find_model_name(base).rpartition("/")[2]:
        return None
    return (
        f"{config.path.parent.name} says that it was made on '{config.base}'; whether '{base.name}' is the "
        "same model cannot be known by its name"
    )


def _is_hub_id(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not name.startswith(".")
