"""Routers and gate scales from hidden states of a probe set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from emberge import CheckpointError
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorReader, TensorSpec

from emberge_moe.upcycle.probe import block_inputs

if TYPE_CHECKING:
    from emberge.encoding import TextEmbedder
    from torch import Tensor

    from emberge_moe.upcycle.dense_model import DenseModel


def mean_states(
    embedder: TextEmbedder, dense: DenseModel, layers: Sequence[int], texts: Sequence[str]
) -> dict[int, Tensor]:
    """Return by layer the mean of the states that go into the feed-forward block, float64 [width]."""
    sums = {layer: torch.zeros(dense.width, dtype=torch.float64) for layer in layers}
    tokens = dict.fromkeys(layers, 0)
    paths = {layer: dense.entered(layer) for layer in layers}
    for layer, states in block_inputs(embedder, paths, texts):
        sums[layer] += states.double().sum(0).cpu()
        tokens[layer] += len(states)
    return {layer: sums[layer] / tokens[layer] for layer in layers}


def write_routers(
    folder: Path, means: Sequence[Mapping[int, Tensor]], dtype: str
) -> Mapping[int, TensorSpec]:
    """Write each layer's router, of the experts' mean states, into a folder, and return where they are.

    What all means share moves no token to any expert, as a softmax does not see it, so it is taken off.
    Rows are as long as those of a router drawn with a standard deviation of 0.02.

    Raises:
        CheckpointError: for experts whose states are the same, which no router tells apart.
    """
    from safetensors.torch import save_file

    routers = {}
    for layer in means[0]:
        rows = torch.stack([one[layer] for one in means])
        rows -= rows.mean(0)
        lengths = rows.norm(dim=1, keepdim=True)
        if not bool((lengths > 0).all()):
            raise CheckpointError(
                f"layer {layer}: the states of an expert's probe set are the mean of all, so no router tells "
                "it apart; give each expert texts of its own, or set router: normal(0.02)"
            )
        routers[str(layer)] = rows / lengths * 0.02 * math.sqrt(rows.shape[1])
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: rows.to(getattr(torch, dtype)) for name, rows in routers.items()}
    save_file(stored, folder / "model.safetensors")
    return read_routers(folder)


def read_routers(folder: Path) -> Mapping[int, TensorSpec]:
    """Return the routers that `write_routers` left in a folder, by layer."""
    return {int(name): spec for name, spec in Checkpoint(folder).specs.items()}


def read_tensor(spec: TensorSpec) -> Tensor:
    """Return a whole tensor, float32."""
    whole = torch.empty(spec.elements)
    with TensorReader() as reader:
        reader.read(spec, 0, whole)
    return whole.view(spec.shape)


def gate_scale(
    inputs: Iterator[tuple[int, Tensor]], routers: Mapping[int, Tensor], top_k: int
) -> float:
    """Return 1 by the mean sum of the chosen gates, over all layers and tokens."""
    total, tokens = 0.0, 0
    for layer, states in inputs:
        logits = states.float() @ routers[layer].to(states.device).T
        total += float(logits.softmax(-1).topk(top_k)[0].double().sum())
        tokens += len(states)
    return tokens / total
