"""The format `emberge_routed`: the routed layers, config, code and tensor names of a routed model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emberge import WholeNumber
from emberge.tensor_files import TensorSpec

from emberge_moe.dense_model import FUSED_NAME, ROTARY_TYPE, ROUTED_TYPE, DenseModel
from emberge_moe.derived_tensors import slice_tensor

CODE = Path(__file__).parent / "modeling_emberge_routed.py"
"""The code saved with a routed model, which other programs run with `trust_remote_code`."""
AUTO_MAP = {
    "AutoConfig": f"{CODE.stem}.EmbergeRoutedConfig",
    "AutoModel": f"{CODE.stem}.EmbergeRoutedModel",
    "AutoModelForMaskedLM": f"{CODE.stem}.EmbergeRoutedForMaskedLM",
}
"""The value of `auto_map` in a routed model's config.json, which names the classes in its code."""
LayerChoice = Literal["alternate", "all"] | tuple[WholeNumber, ...]

# Parts of the names of a rotary model's tensors on disk and in memory.
_DISK_TO_MEMORY = (
    ("emb_ln.", "embeddings.LayerNorm."),
    ("encoder.layers.", "layers."),
    (".norm1.", ".post_attention_layernorm."),
    (".norm2.", ".post_mlp_layernorm."),
    (".mixer.out_proj.", ".self_attn.o_proj."),
)
# Its matrices of query, key and value in memory.
_SPLIT_NAMES = tuple(f".self_attn.{one}_proj." for one in "qkv")


@dataclass(frozen=True)
class LayerRouting:
    """Numbers of the routed layers, and the options of their routing."""

    layers: tuple[int, ...]
    experts: int
    top_k: int
    normalize_gates: bool = True


def choose_layers(layers: LayerChoice, depth: int) -> tuple[int, ...]:
    """Return the numbers of the layers that an option names, in ascending order.

    Raises:
        ValueError: if a model with `depth` layers lacks one of them, or no layer is named.
    """
    if layers == "alternate":
        numbers = tuple(range(1, depth, 2))
    elif layers == "all":
        numbers = tuple(range(depth))
    else:
        numbers = tuple(sorted(set(layers)))
    invalid_layers = [layer for layer in numbers if not 0 <= layer < depth]
    if invalid_layers:
        raise ValueError(
            f"layer {invalid_layers[0]} does not exist: the model has layers 0 to {depth - 1}"
        )
    if not numbers:
        raise ValueError(f"none of the model's layers, {depth} in number, would be routed")
    return numbers


def name_load(layer: int, expert: int) -> str:
    """Return the name of the metric that trainings log for the share of tokens that an expert gets."""
    return f"load/{layer}/{expert}"


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


def _to_loaded_name(model_type: str, name: str) -> str:
    """Return the name in memory of a model type's tensor on disk; both names without the prefix."""
    for stored, loaded in _DISK_TO_MEMORY if model_type == ROTARY_TYPE else ():
        if stored.startswith("."):
            name = name.replace(stored, loaded)
        elif name.startswith(stored):
            name = loaded + name.removeprefix(stored)
    return name


def _split_name(model_type: str, fused: str) -> list[str]:
    """Return the names in memory of the three parts of a fused matrix on disk; empty for other tensors."""
    if model_type != ROTARY_TYPE or FUSED_NAME not in fused:
        return []
    return [_to_loaded_name(model_type, fused.replace(FUSED_NAME, part)) for part in _SPLIT_NAMES]
