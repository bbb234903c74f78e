"""The number of an embedding model's parameters, from headers, or from the config alone."""

from __future__ import annotations

from emberge import CheckpointError
from emberge.architectures import find_config_class, silence_transformers
from emberge.model_folder import Checkpoint
from emberge.tensor_names import POOLER, find_head, is_buffer


def count_parameters(checkpoint: Checkpoint) -> int:
    """Return the number of parameters of an embedding model; heads for other tasks do not count.

    Without weights it is the number of the model that transformers builds from the config.

    Raises:
        CheckpointError: for weights that cannot be read, or a config from which transformers builds no model
            without remote code.
    """
    if not checkpoint.has_weights:
        return _count_by_config(checkpoint)
    names = checkpoint.tensor_names
    heads = {name for name in names.heads if find_head(name) != POOLER}
    return sum(
        spec.elements
        for name, spec in names.specs.items()
        if name not in heads and not is_buffer(name) and not names.is_redundant(name)
    )


def _count_by_config(checkpoint: Checkpoint) -> int:
    import torch
    from transformers import AutoModel

    config = checkpoint.config
    config_class = find_config_class(str(config.get("model_type")))
    if config_class is None:
        raise CheckpointError(f"{checkpoint.folder}: transformers has no such model type")
    try:
        with torch.device("meta"), silence_transformers():
            built = config_class.from_dict(dict(config))
            model = AutoModel.from_config(  # type: ignore[no-untyped-call]
                built, trust_remote_code=False
            )
    except Exception as error:  # of a stranger's config, in any line of a model's code
        raise CheckpointError(f"{checkpoint.folder}: transformers builds no model of it") from error
    return sum(weight.numel() for weight in model.parameters())
