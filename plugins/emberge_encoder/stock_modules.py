"""Stock modules of sentence-transformers: loaded without pickles, run one after another, saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from emberge import CheckpointError
from emberge.model_folder import ModuleFolder
from torch import Tensor, nn

from emberge_encoder.text.trunk_weights import refuse_pickled_module


def run_modules(modules: Sequence[nn.Module], features: dict[str, Any]) -> Tensor:
    """Return the embeddings [n, d] that a chain of stock modules makes of features."""
    for module in modules:
        features = module(features)
    embedding: Tensor = features["sentence_embedding"]
    return embedding


def begin_dense(inputs: int, outputs: int) -> nn.Module:
    """Return a Dense without bias, the identity or of orthogonal rows or columns, equal at every call."""
    from sentence_transformers.sentence_transformer import modules as stock

    weight = torch.empty(outputs, inputs)
    if inputs == outputs:
        nn.init.eye_(weight)
    else:
        nn.init.orthogonal_(weight, generator=torch.Generator().manual_seed(0))
    module: nn.Module = stock.Dense(
        inputs, outputs, bias=False, activation_function=nn.Identity(), init_weight=weight
    )
    return module


def load_stock_module(folder: Path, entry: ModuleFolder) -> Any:
    """Return a stock module of a model's folder with its weights.

    Raises:
        CheckpointError: if no such module is known, its weights are a pickle, or it cannot be loaded.
    """
    from sentence_transformers.sentence_transformer import modules as stock

    if entry.kind == "Normalize":
        return stock.Normalize()
    kind = getattr(stock, entry.kind, None)
    if kind is None:
        raise CheckpointError(f"{folder}/modules.json: no stock module '{entry.kind}' is known")
    module_folder = folder / entry.path
    refuse_pickled_module(module_folder)
    try:
        return kind.load(str(folder), subfolder=entry.path)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{module_folder}: cannot be loaded: {error}") from error


def save_stock_module(module: Any, folder: Path) -> None:
    """Write a module's weights, and its config if none was copied."""
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    if not (folder / "config.json").is_file():
        module.save(str(folder))
    state = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
