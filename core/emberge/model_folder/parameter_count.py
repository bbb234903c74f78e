"""Counts of a model's parameters, all and those used by one token, from headers and config."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from emberge.architectures import find_config_class, quiet_transformers, refuse_impossible_sizes
from emberge.contracts import ParameterCount
from emberge.errors import CheckpointError
from emberge.model_folder.checkpoint import Checkpoint
from emberge.tensor_files import TensorSpec
from emberge.tensor_names import POOLER, head_of, is_buffer

# Names that configs have for the number of experts of a layer, and for those that a token is sent to.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN_EXPERTS = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_top_k",
    "top_k",
)
# One tensor an expert, and tensors of all experts, first to last along the rows.
_SINGLE_EXPERT = re.compile(r"\.experts\.\d+\.")
_STACKED_EXPERTS = re.compile(r"\.experts\.|\.block_sparse_moe\.(input|output)_linear\.")


def count_parameters(checkpoint: Checkpoint, *, left_out: Collection[str] = ()) -> ParameterCount:
    """Return the numbers of parameters of an embedding model; heads for other tasks do not count.

    Tensors whose canonical names are `left_out` do not count either. Without weights the numbers are those of
    the model that transformers builds from the config.

    Raises:
        CheckpointError: for weights that cannot be read, or a config from which transformers builds no model
            without remote code.
    """
    if not checkpoint.has_weights:
        return _count_by_config(checkpoint)
    names = checkpoint.names
    heads = {name for name in names.heads if head_of(name) != POOLER}
    counted_specs = {
        name: spec
        for name, spec in names.specs.items()
        if name not in heads
        and name not in left_out
        and not is_buffer(name)
        and not names.is_tied_copy(name)
    }
    words = names.embedding()
    if words is None and [module.kind for module in checkpoint.chain[:1]] == ["StaticEmbedding"]:
        words = names.specs.get("embedding.weight")
    return _count_specs(
        checkpoint.config, counted_specs, words.elements if words is not None else 0
    )


def _count_by_config(checkpoint: Checkpoint) -> ParameterCount:
    import torch
    from transformers import AutoModel

    config = checkpoint.config
    config_class = find_config_class(str(config.get("model_type")))
    if config_class is None:
        raise CheckpointError(f"{checkpoint.folder}: transformers has no such model type")
    refuse_impossible_sizes(config)
    try:
        with torch.device("meta"), quiet_transformers():
            built = config_class.from_dict(dict(config))
            model = AutoModel.from_config(  # type: ignore[no-untyped-call]
                built, trust_remote_code=False
            )
    except Exception as error:  # of a stranger's config, in any line of a model's code
        raise CheckpointError(f"{checkpoint.folder}: transformers builds no model of it") from error
    counted_specs = {
        name: TensorSpec(name, tuple(weight.shape), "float32")
        for name, weight in model.named_parameters()
    }
    table = model.get_input_embeddings()
    return _count_specs(config, counted_specs, table.weight.numel() if table is not None else 0)


def _count_specs(
    config: Mapping[str, Any], counted_specs: Mapping[str, TensorSpec], table: int
) -> ParameterCount:
    total = sum(spec.elements for spec in counted_specs.values())
    idle = 0
    if (share := _count_experts(config)) is not None:
        experts, active = share
        expert_size = sum(s.elements for s in counted_specs.values() if _is_of_experts(s, experts))
        idle = expert_size * (experts - active) // experts
    return ParameterCount(total, total - idle, total - idle - table)


def expert_count(config: Mapping[str, Any]) -> int:
    """Return the number of experts in a layer, from the config; 0 for a dense model."""
    return max(_read_number(part, _EXPERTS) for part in _list_text_configs(config))


def _count_experts(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return (experts of a layer, experts that a token uses); None for a dense model."""
    for part in _list_text_configs(config):
        experts, active = _read_number(part, _EXPERTS), _read_number(part, _CHOSEN_EXPERTS)
        if experts and active:
            return experts, active
    return None


def _list_text_configs(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a config, and its text model's config if it is composite."""
    yield config
    if isinstance(inner := config.get("text_config"), Mapping):
        yield inner


def _read_number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """Return the first nonzero number that a config has under any of the names; 0 if there is none."""
    return next(
        (number for name in names if isinstance(number := config.get(name), int) and number), 0
    )


def _is_of_experts(spec: TensorSpec, experts: int) -> bool:
    """Return whether a tensor belongs to one expert or to all experts of a layer."""
    stacked = (
        len(spec.shape) > 1 and spec.shape[0] % experts == 0 and _STACKED_EXPERTS.search(spec.name)
    )
    return bool(stacked or _SINGLE_EXPERT.search(spec.name))
