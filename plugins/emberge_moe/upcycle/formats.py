"""Formats of routed models: the class of transformers for a Qwen3, and `emberge_routed` for all others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.tensor_files import TensorSpec
from emberge.tensor_names import prefix_of

from emberge_moe.upcycle.dense_model import DenseModel, LayerRouting
from emberge_moe.upcycle.expert_tensors import Joined, part_of

ORIGIN = "upcycled_from"
"""Key of the config under which the dense model's whole config is kept, for the way back."""

_TENSORS = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
_NATIVE_ROUTER = re.compile(r"(.*layers\.(\d+)\.mlp\.)gate\.weight")

_FILE = "modeling_emberge_routed.py"
_ROUTER = re.compile(r"(.*(?:layers|layer)\.(\d+)\.(?:mlp\.)?)router\.weight")

# The model type whose tensors have other names on disk than in memory, and parts of both names.
_ROTARY = "jina_embeddings_v3"
_RENAMED = (
    ("emb_ln.", "embeddings.LayerNorm."),
    ("encoder.layers.", "layers."),
    (".norm1.", ".post_attention_layernorm."),
    (".norm2.", ".post_mlp_layernorm."),
    (".mixer.out_proj.", ".self_attn.o_proj."),
)
# Its one matrix of query, key and value on disk, and the three in memory.
_FUSED = ".mixer.Wqkv."
_SPLIT = tuple(f".self_attn.{one}_proj." for one in "qkv")


@dataclass(frozen=True)
class RoutedBlock:
    """A planned routed block: the dense block's path, its router, and experts by dense tensor names."""

    path: str
    router: TensorSpec
    experts: Sequence[Mapping[str, TensorSpec]]


@dataclass(frozen=True)
class RestoredTensors:
    """A routed model's tensors under the dense model's names and shapes.

    `experts` has for each layer its experts' tensors by the dense tensors' full names, and `other_tensors`
    all other tensors of the dense model.
    """

    experts: dict[int, Sequence[Mapping[str, TensorSpec]]] = field(default_factory=dict)
    other_tensors: list[TensorSpec] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RoutedTarget:
    """A format of routed models, by its model type."""

    name: str

    @property
    def code(self) -> Path | None:
        """The code saved with the model, run with `trust_remote_code`; None for a native class."""
        return None

    def config(self, dense: DenseModel, routing: LayerRouting) -> dict[str, Any]:
        """Return the config of the routed model."""
        raise NotImplementedError

    def block(self, dense: DenseModel, block: RoutedBlock) -> Iterator[TensorSpec]:
        """Yield the tensors of a routed block, under their names in this format."""
        raise NotImplementedError

    def replace_tensor(self, dense: DenseModel, spec: TensorSpec) -> Iterator[TensorSpec]:
        """Yield the tensors that replace a tensor outside routed blocks: by default the tensor itself."""
        yield spec

    def dense_config(self, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the copy of the dense model's config in a routed model's config; None without one."""
        raise NotImplementedError

    def restored(
        self, config: Mapping[str, Any], specs: Mapping[str, TensorSpec]
    ) -> RestoredTensors:
        """Return a routed model's tensors under the dense model's names and shapes."""
        raise NotImplementedError


@dataclass(frozen=True)
class Qwen3Moe(RoutedTarget):
    """Format `qwen3_moe`, which routes any layers and whose experts are separate tensors on disk."""

    def config(self, dense: DenseModel, routing: LayerRouting) -> dict[str, Any]:
        settings = {k: v for k, v in dense.config.items() if k not in ("auto_map", "_name_or_path")}
        causal = any(str(n).endswith("ForCausalLM") for n in settings.get("architectures") or ())
        alternate = routing.layers == tuple(range(1, routing.depth, 2))
        return {
            **settings,
            "model_type": self.name,
            "architectures": [f"Qwen3Moe{'ForCausalLM' if causal else 'Model'}"],
            "num_experts": routing.experts,
            "num_experts_per_tok": routing.top_k,
            "moe_intermediate_size": dense.config["intermediate_size"],
            "norm_topk_prob": routing.normalize_gates,
            "decoder_sparse_step": 2 if alternate else 1,
            "mlp_only_layers": [] if alternate else routing.dense_layers,
            "use_sliding_window": _find_window_kinds(dense) == {True},
            "output_router_logits": False,
            ORIGIN: dict(dense.config),
        }

    def block(self, dense: DenseModel, block: RoutedBlock) -> Iterator[TensorSpec]:
        yield block.router.renamed(f"{block.path}gate.weight")
        for number, expert in enumerate(block.experts):
            for name, spec in expert.items():
                yield spec.renamed(f"{block.path}experts.{number}.{name}")

    def dense_config(self, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        dense = config.get(ORIGIN)
        return dense if isinstance(dense, Mapping) else None

    def restored(
        self, config: Mapping[str, Any], specs: Mapping[str, TensorSpec]
    ) -> RestoredTensors:
        result = RestoredTensors()
        paths: list[str] = []
        for name, spec in specs.items():
            match = _NATIVE_ROUTER.fullmatch(name)
            if match is not None:
                path, layer = match[1], int(match[2])
                paths.append(path)
                result.experts[layer] = [
                    {
                        path + tensor: specs[f"{path}experts.{number}.{tensor}"]
                        for tensor in _TENSORS
                    }
                    for number in range(spec.shape[0])
                ]
        result.other_tensors.extend(s for n, s in specs.items() if not n.startswith(tuple(paths)))
        return result


def can_be_native(dense: DenseModel) -> bool:
    """Return whether `qwen3_moe` computes the same as the dense model.

    Its experts have no biases, and all of its layers have one attention window, or none.
    """
    has_biases = bool(dense.config.get("mlp_bias"))
    return dense.kind == "qwen3" and not has_biases and len(_find_window_kinds(dense)) == 1


def _find_window_kinds(dense: DenseModel) -> set[bool]:
    """Return the kinds of a Qwen3's layers: True for a sliding window."""
    config = dense.config
    if not config.get("use_sliding_window"):
        return {False}
    kinds = config.get("layer_types")
    if kinds:
        return {kind == "sliding_attention" for kind in kinds}
    return {layer >= config.get("max_window_layers", 28) for layer in range(dense.depth)}


QWEN3_MOE = Qwen3Moe(name="qwen3_moe")


@dataclass(frozen=True)
class RoutedFormat(RoutedTarget):
    """Format that wraps any dense class; other programs load it with the folder's own code file."""

    @property
    def code(self) -> Path:
        return Path(__file__).parents[1] / _FILE

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
    first, *others = _SPLIT
    for name, spec in specs.items():
        if kind != _ROTARY or not any(part in name for part in _SPLIT):
            yield spec.renamed(name)
        elif first in name:
            parts = (spec, *(specs[name.replace(first, other)] for other in others))
            rows = sum(part.shape[0] for part in parts)
            fused = name.replace(first, _FUSED)
            yield Joined(fused, (rows, *spec.shape[1:]), spec.dtype, parts=parts)


def loaded_name(kind: str, name: str) -> str:
    """Return the name in memory of a model type's tensor on disk; both names without the prefix."""
    for stored, loaded in _RENAMED if kind == _ROTARY else ():
        name = _replace_part(name, stored, loaded)
    return name


def stored_name(kind: str, name: str) -> str:
    """Return the name on disk of a model type's tensor in memory; both names without the prefix."""
    for stored, loaded in _RENAMED if kind == _ROTARY else ():
        name = _replace_part(name, loaded, stored)
    return name


def split_names(kind: str, fused: str) -> list[str]:
    """Return the names in memory of the three parts of a fused matrix on disk; empty for other tensors."""
    if kind != _ROTARY or _FUSED not in fused:
        return []
    return [loaded_name(kind, fused.replace(_FUSED, part)) for part in _SPLIT]


def _replace_part(name: str, old: str, new: str) -> str:
    if old.startswith("."):
        return name.replace(old, new)
    return new + name[len(old) :] if name.startswith(old) else name


ROUTED = RoutedFormat(name="emberge_routed")
