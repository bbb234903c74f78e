"""The format `emberge_routed`: the config, code and tensor names of a dense model with routed blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.tensor_files import TensorSpec
from emberge.tensor_names import find_prefix

from emberge_moe.dense_model import FUSED_NAME, ROTARY_TYPE, ROUTED_TYPE, DenseModel, LayerRouting
from emberge_moe.expert_tensors import JoinedTensor, slice_tensor

CODE = Path(__file__).parent / "modeling_emberge_routed.py"
"""The code saved with a routed model, which other programs run with `trust_remote_code`."""
AUTO_MAP = {
    "AutoConfig": f"{CODE.stem}.EmbergeRoutedConfig",
    "AutoModel": f"{CODE.stem}.EmbergeRoutedModel",
    "AutoModelForMaskedLM": f"{CODE.stem}.EmbergeRoutedForMaskedLM",
}
"""The value of `auto_map` in a routed model's config.json, which names the classes in its code."""
_ROUTER = re.compile(r"(.*(?:layers|layer)\.(\d+)\.(?:mlp\.)?)router\.weight")

# Parts of the names of a rotary model's tensors on disk and in memory.
_RENAMED_TENSORS = (
    ("emb_ln.", "embeddings.LayerNorm."),
    ("encoder.layers.", "layers."),
    (".norm1.", ".post_attention_layernorm."),
    (".norm2.", ".post_mlp_layernorm."),
    (".mixer.out_proj.", ".self_attn.o_proj."),
)
# Its matrices of query, key and value in memory.
_SPLIT_NAMES = tuple(f".self_attn.{one}_proj." for one in "qkv")


@dataclass(frozen=True)
class RestoredTensors:
    """A routed model's tensors under the dense model's names and shapes.

    `experts` has for each layer its experts' tensors by the dense tensors' full names, and `other_tensors`
    all other tensors of the dense model.
    """

    experts: dict[int, Sequence[Mapping[str, TensorSpec]]] = field(default_factory=dict)
    other_tensors: list[TensorSpec] = field(default_factory=list)


def build_routed_config(dense: DenseModel, routing: LayerRouting) -> dict[str, Any]:
    """Return the config of the routed model, which has the dense model's whole config inside."""
    return {
        "model_type": ROUTED_TYPE,
        "architectures": ["EmbergeRoutedModel"],
        "auto_map": AUTO_MAP,
        "inner": {k: v for k, v in dense.config.items() if k not in ("auto_map", "_name_or_path")},
        "routed_layers": list(routing.layers),
        "num_experts": routing.experts,
        "top_k": routing.top_k,
        "normalize_gates": routing.normalize_gates,
    }


def list_block_tensors(
    dense: DenseModel, path: str, router: TensorSpec, experts: Sequence[Mapping[str, TensorSpec]]
) -> Iterator[TensorSpec]:
    """Yield the tensors of a routed block: its router, and experts by the dense tensors' names."""
    loaded_path = _find_loaded_path(dense, path)
    yield router.with_name(f"{loaded_path}router.weight")
    for number, expert in enumerate(experts):
        for name, spec in expert.items():
            below = _find_loaded_path(dense, path + name).removeprefix(loaded_path)
            yield spec.with_name(f"{loaded_path}experts.{number}.{below}")


def list_loaded_tensors(dense: DenseModel, spec: TensorSpec) -> Iterator[TensorSpec]:
    """Yield a stored tensor outside routed blocks under its name in memory, or its parts if it is fused."""
    parts = _split_name(dense.model_type, spec.name.removeprefix(dense.prefix))
    if not parts:
        yield spec.with_name(_find_loaded_path(dense, spec.name))
    for number, part in enumerate(parts):
        shape = (spec.shape[0] // 3, *spec.shape[1:])
        start = number * spec.elements // 3
        yield slice_tensor(spec, dense.prefix + part, shape, start)


def _find_loaded_path(dense: DenseModel, name: str) -> str:
    if not name.startswith(dense.prefix):
        return name
    return dense.prefix + _to_loaded_name(dense.model_type, name.removeprefix(dense.prefix))


def restore_tensors(model_type: str, specs: Mapping[str, TensorSpec]) -> RestoredTensors:
    """Return a routed model's tensors under the names and shapes of its dense model, of this type."""
    prefix = find_prefix(specs)

    def restore_name(name: str) -> str:
        below = name.startswith(prefix)
        return prefix + _to_stored_name(model_type, name.removeprefix(prefix)) if below else name

    result = RestoredTensors()
    routed_names: set[str] = set()
    for name, spec in specs.items():
        match = _ROUTER.fullmatch(name)
        if match is None:
            continue
        path, layer = match[1], int(match[2])
        result.experts[layer] = experts = []
        for number in range(spec.shape[0]):
            start = f"{path}experts.{number}."
            expert = {n: s for n, s in specs.items() if n.startswith(start)}
            experts.append(
                {restore_name(path + n.removeprefix(start)): s for n, s in expert.items()}
            )
            routed_names |= expert.keys()
        routed_names.add(name)
    others = {restore_name(name): spec for name, spec in specs.items() if name not in routed_names}
    result.other_tensors.extend(_fuse_parts(model_type, others))
    return result


def _fuse_parts(model_type: str, specs: Mapping[str, TensorSpec]) -> Iterator[TensorSpec]:
    """Yield tensors under their names on disk; query, key and value are joined if the type fuses them."""
    first, *others = _SPLIT_NAMES
    for name, spec in specs.items():
        if model_type != ROTARY_TYPE or not any(part in name for part in _SPLIT_NAMES):
            yield spec.with_name(name)
        elif first in name:
            parts = (spec, *(specs[name.replace(first, other)] for other in others))
            rows = sum(part.shape[0] for part in parts)
            fused = name.replace(first, FUSED_NAME)
            yield JoinedTensor(fused, (rows, *spec.shape[1:]), spec.dtype, parts=parts)


def _to_loaded_name(model_type: str, name: str) -> str:
    """Return the name in memory of a model type's tensor on disk; both names without the prefix."""
    for stored, loaded in _RENAMED_TENSORS if model_type == ROTARY_TYPE else ():
        name = _replace_part(name, stored, loaded)
    return name


def _to_stored_name(model_type: str, name: str) -> str:
    """Return the name on disk of a model type's tensor in memory; both names without the prefix."""
    for stored, loaded in _RENAMED_TENSORS if model_type == ROTARY_TYPE else ():
        name = _replace_part(name, loaded, stored)
    return name


def _split_name(model_type: str, fused: str) -> list[str]:
    """Return the names in memory of the three parts of a fused matrix on disk; empty for other tensors."""
    if model_type != ROTARY_TYPE or FUSED_NAME not in fused:
        return []
    return [_to_loaded_name(model_type, fused.replace(FUSED_NAME, part)) for part in _SPLIT_NAMES]


def _replace_part(name: str, old: str, new: str) -> str:
    if old.startswith("."):
        return name.replace(old, new)
    return new + name[len(old) :] if name.startswith(old) else name
