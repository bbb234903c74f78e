"""Parts of a transformer that a training leaves as they are, such as the towers of images and sounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emberge import CheckpointError, suggest

__all__ = ["freeze", "freezing_problems"]


def freezing_problems(folder: Path, config: Mapping[str, Any], parts: Sequence[str]) -> list[str]:
    """Return the names among `parts` that the transformer does not have, from its config alone."""
    import torch
    from transformers import AutoModel

    from emberge_encoder.trunk_weights import config_of, quiet

    try:
        with torch.device("meta"), quiet():
            built = config_of(folder, config)
            trunk = AutoModel.from_config(  # type: ignore[no-untyped-call]
                built, trust_remote_code=False
            )
    except CheckpointError as error:
        return [str(error)]
    return _unknown(trunk, folder, parts)


def freeze(trunk: Any, parts: Sequence[str], folder: Path) -> None:
    """Take parts of a transformer out of training: they get no gradient and no optimiser state.

    Raises:
        CheckpointError: for a name that it does not have, or when nothing is left to train.
    """
    if problems := _unknown(trunk, folder, parts):
        raise CheckpointError(problems[0])
    for name in parts:
        trunk.get_submodule(name).requires_grad_(False)


def _unknown(trunk: Any, folder: Path, parts: Sequence[str]) -> list[str]:
    known = {name for name, _ in trunk.named_modules() if name}
    top = [name for name, _ in trunk.named_children()]
    found = [
        f"{folder}: freeze names '{part}', which the model does not have{suggest(part, top)}; its parts are "
        f"{', '.join(top)}"
        for part in parts
        if part not in known
    ]
    if not found and set(top) <= set(parts):
        found = [f"{folder}: freeze names every part of the model, so nothing is left to train"]
    return found
