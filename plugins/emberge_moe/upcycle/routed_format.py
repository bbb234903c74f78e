"""The format `emberge_routed`: the dense model's own tensors, and experts in place of feed-forward blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.tensor_files import TensorSpec
from emberge.tensor_names import prefix_of

from emberge_moe.upcycle.dense_model import DenseModel
from emberge_moe.upcycle.expert_tensors import Joined, part_of
from emberge_moe.upcycle.routing import LayerRouting, RestoredTensors, RoutedBlock, RoutedTarget

_FILE = "modeling_emberge_routed.py"
_ROUTER = re.compile(r"(.*(?:layers|layer)\.(\d+)\.(?:mlp\.)?)router\.weight")

# Tensor names on disk, and those of the class that loads them, where the two differ.
_SHARED = (
    ("emb_ln.", "embeddings.LayerNorm."),
    ("encoder.layers.", "layers."),
    (".norm1.", ".post_attention_layernorm."),
    (".norm2.", ".post_mlp_layernorm."),
)
_PAIRS: dict[str, Sequence[tuple[str, str]]] = {
    "jina_embeddings_v3": (*_SHARED, (".mixer.out_proj.", ".self_attn.o_proj.")),
    "nomic_bert": (
        *_SHARED,
        (".attn.out_proj.", ".self_attn.o_proj."),
        (".mlp.fc11.", ".mlp.up_proj."),
        (".mlp.fc12.", ".mlp.gate_proj."),
        (".mlp.fc2.", ".mlp.down_proj."),
    ),
}
# One matrix of query, key and value on disk.
_FUSED = {"jina_embeddings_v3": ".mixer.Wqkv.", "nomic_bert": ".attn.Wqkv."}
_SPLIT = tuple(f".self_attn.{one}_proj." for one in "qkv")


@dataclass(frozen=True)
class RoutedFormat(RoutedTarget):
    """Format that wraps any dense class; other programs load it with the folder's own code file."""

    @property
    def code(self) -> Path:
        return Path(__file__).parents[1] / _FILE

    @property
    def loading(self) -> str:
        return f"its class is {_FILE} in the folder"

    def refusals(self, dense: DenseModel, routing: LayerRouting) -> Iterator[str]:
        yield from ()

    def config(self, dense: DenseModel, routing: LayerRouting) -> dict[str, Any]:
        dense_config = {
            k: v for k, v in dense.config.items() if k not in ("auto_map", "_name_or_path")
        }
        return {
            "model_type": self.name,
            "architectures": ["EmbergeRoutedModel"],
            "auto_map": {
                "AutoConfig": "modeling_emberge_routed.EmbergeRoutedConfig",
                "AutoModel": "modeling_emberge_routed.EmbergeRoutedModel",
                "AutoModelForMaskedLM": "modeling_emberge_routed.EmbergeRoutedForMaskedLM",
            },
            "inner": dense_config,
            "routed_layers": list(routing.layers),
            "num_experts": routing.experts,
            "top_k": routing.top_k,
            "normalize_gates": routing.normalize_gates,
        }

    def block(self, dense: DenseModel, block: RoutedBlock) -> Iterator[TensorSpec]:
        path = self._find_loaded_path(dense, block.path)
        yield block.router.renamed(f"{path}router.weight")
        for number, expert in enumerate(block.experts):
            for name, spec in expert.items():
                path_below = self._find_loaded_path(dense, block.path + name).removeprefix(path)
                yield spec.renamed(f"{path}experts.{number}.{path_below}")

    def replace_tensor(self, dense: DenseModel, spec: TensorSpec) -> Iterator[TensorSpec]:
        name = spec.name.removeprefix(dense.prefix)
        parts = split_names(dense.kind, name)
        if not parts:
            yield spec.renamed(self._find_loaded_path(dense, spec.name))
        for number, part in enumerate(parts):
            shape = (spec.shape[0] // 3, *spec.shape[1:])
            start = number * spec.elements // 3
            yield part_of(spec, dense.prefix + part, shape, start)

    @staticmethod
    def _find_loaded_path(dense: DenseModel, name: str) -> str:
        if not name.startswith(dense.prefix):
            return name
        return dense.prefix + loaded_name(dense.kind, name.removeprefix(dense.prefix))

    def dense_config(self, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        dense_settings = config.get("inner")
        return dense_settings if isinstance(dense_settings, Mapping) else None

    def restored(
        self, config: Mapping[str, Any], specs: Mapping[str, TensorSpec]
    ) -> RestoredTensors:
        kind, prefix = str(config["inner"]["model_type"]), prefix_of(specs)

        def stored(name: str) -> str:
            expert = name.startswith(prefix)
            return prefix + stored_name(kind, name.removeprefix(prefix)) if expert else name

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
                experts.append({stored(path + n.removeprefix(start)): s for n, s in expert.items()})
                routed_names |= expert.keys()
            routed_names.add(name)
        other_specs = {
            stored(name): spec for name, spec in specs.items() if name not in routed_names
        }
        result.other_tensors.extend(_fuse_parts(kind, other_specs))
        return result


def _fuse_parts(kind: str, specs: Mapping[str, TensorSpec]) -> Iterator[TensorSpec]:
    """Yield tensors under their names on disk; query, key and value are joined if the type fuses them."""
    for name, spec in specs.items():
        fused, first = fused_name(kind, name)
        if not fused:
            yield spec.renamed(name)
        elif first:
            parts = tuple(specs[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv")
            rows = sum(part.shape[0] for part in parts)
            yield Joined(fused, (rows, *spec.shape[1:]), spec.dtype, parts=parts)


def loaded_name(kind: str, name: str) -> str:
    """Return the name in memory of a model type's tensor on disk; both names without the prefix."""
    for stored, loaded in _PAIRS.get(kind, ()):
        name = _replace_part(name, stored, loaded)
    return name


def stored_name(kind: str, name: str) -> str:
    """Return the name on disk of a model type's tensor in memory; both names without the prefix."""
    for stored, loaded in _PAIRS.get(kind, ()):
        name = _replace_part(name, loaded, stored)
    return name


def split_names(kind: str, fused: str) -> list[str]:
    """Return the names in memory of the three parts of a fused matrix on disk; empty for other tensors."""
    word = _FUSED.get(kind)
    if word is None or word not in fused:
        return []
    return [loaded_name(kind, fused.replace(word, part)) for part in _SPLIT]


def fused_name(kind: str, name: str) -> tuple[str, bool]:
    """Return (name of the fused matrix with this tensor, or ""; whether the tensor is its first part)."""
    word = _FUSED.get(kind)
    part = next((split for split in _SPLIT if split in name), None)
    if word is None or part is None:
        return "", False
    return name.replace(part, word), part == _SPLIT[0]


def _replace_part(name: str, old: str, new: str) -> str:
    if old.startswith("."):
        return name.replace(old, new)
    return new + name[len(old) :] if name.startswith(old) else name


ROUTED = RoutedFormat(name="emberge_routed")
