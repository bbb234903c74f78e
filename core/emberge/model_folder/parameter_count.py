"""The number of a model's parameters, from headers or config, and of its experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emberge.architectures import find_config_class, quiet_transformers
from emberge.errors import CheckpointError
from emberge.model_folder.checkpoint import Checkpoint
from emberge.tensor_names import POOLER, head_of, is_buffer

# Names that configs have for the number of experts of a layer.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def count_parameters(checkpoint: Checkpoint) -> int:
    """Return the number of parameters of an embedding model; heads for other tasks do not count.

    Without weights it is the number of the model that transformers builds from the config.

    Raises:
        CheckpointError: for weights that cannot be read, or a config from which transformers builds no model
            without remote code.
    """
    if not checkpoint.has_weights:
        return _count_by_config(checkpoint)
    names = checkpoint.names
    heads = {name for name in names.heads if head_of(name) != POOLER}
    return sum(
        spec.elements
        for name, spec in names.specs.items()
        if name not in heads and not is_buffer(name) and not names.is_tied_copy(name)
    )


def _count_by_config(checkpoint: Checkpoint) -> int:
    import torch
    from transformers import AutoModel

    config = checkpoint.config
    config_class = find_config_class(str(config.get("model_type")))
    if config_class is None:
        raise CheckpointError(f"{checkpoint.folder}: transformers has no such model type")
    try:
        with torch.device("meta"), quiet_transformers():
            built = config_class.from_dict(dict(config))
            model = AutoModel.from_config(  # type: ignore[no-untyped-call]
                built, trust_remote_code=False
            )
    except Exception as error:  # of a stranger's config, in any line of a model's code
        raise CheckpointError(f"{checkpoint.folder}: transformers builds no model of it") from error
    return sum(weight.numel() for weight in model.parameters())


def expert_count(config: Mapping[str, Any]) -> int:
    """Return the number of experts in a layer, from the config; 0 for a dense model."""
    inner = config.get("text_config")
    parts = (config, inner if isinstance(inner, Mapping) else {})
    numbers = [part.get(name) for part in parts for name in _EXPERTS]
    return max((number for number in numbers if isinstance(number, int)), default=0)
