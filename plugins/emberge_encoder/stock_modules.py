"""Stock modules of sentence-transformers after a transformer: loaded and saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.model_folder import POOLING, Layout, ModuleFolder
from torch import nn

from emberge_encoder.trunk_weights import refuse_pickles

__all__ = ["save_module", "tail_module"]


def tail_module(layout: Layout, entry: ModuleFolder, width: int) -> nn.Module:
    """Return a stock module with its weights; `width` is the size of the transformer's states.

    Raises:
        CheckpointError: for one that cannot be loaded.
    """
    from sentence_transformers.sentence_transformer import modules as stock

    module: nn.Module
    if entry.kind == "Pooling":
        modes = [POOLING[word][0] for word in layout.pooling]
        module = stock.Pooling(width, pooling_mode=modes, include_prompt=layout.include_prompt)
        return module
    if entry.kind == "Normalize":
        return stock.Normalize()  # type: ignore[no-any-return]
    kind = getattr(stock, entry.kind, None)
    if kind is None:
        raise CheckpointError(
            f"{layout.folder}/modules.json: no stock module '{entry.kind}' is known"
        )
    folder = layout.folder / entry.path
    if list(folder.glob("*.bin")):
        refuse_pickles(folder)
    try:
        module = kind.load(str(layout.folder), subfolder=entry.path)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{folder}: cannot be loaded: {error}") from error
    return module


def save_module(module: Any, folder: Path) -> None:
    """Write a module's weights, and its config where none was carried over."""
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    if not (folder / "config.json").is_file():
        module.save(str(folder))
    state = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
