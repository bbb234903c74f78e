"""Routers from a model's states on texts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import CheckpointError
from emberge.contracts import TokenEncoder
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorSpec

if TYPE_CHECKING:
    from emberge import Backbone, DataEntry, Workspace
    from emberge.encoding import TextEmbedder
    from torch import Tensor

    from emberge_moe.upcycle.dense_model import DenseModel


MOST_TEXTS = 256


def probe_texts(data: Sequence[DataEntry], workspace: Workspace) -> list[str]:
    """Return up to 256 distinct anchors and positives of the data sets."""
    from emberge.data import step_datasets

    datasets = step_datasets(workspace, data, limit=MOST_TEXTS)
    # Row by row through all of them, so that each has its share.
    rows = itertools.zip_longest(*([item[i] for i in range(len(item))] for item in datasets))
    examples = (example for row in rows for example in row if example is not None)
    texts = (text for item in examples for text in (item.anchor, *item.positives[:1]))
    return [*itertools.islice(dict.fromkeys(texts), MOST_TEXTS)]


def open_model(folder: Path, backbone: Backbone, workspace: Workspace) -> TextEmbedder:
    """Return an embedder of the model in a folder, computing in float32.

    Raises:
        CheckpointError: if the model cannot be loaded, or its encoder gives no states of tokens.
    """
    from emberge.encoding import TextEmbedder

    encoder = backbone.load(folder, device=workspace.machine.device, dtype="float32")
    if not isinstance(encoder, TokenEncoder):
        raise CheckpointError(
            f"{folder}: {type(encoder).__name__} gives no hidden states of tokens (TokenEncoder); choose a "
            "backbone that does"
        )
    return TextEmbedder(encoder)


def block_inputs(
    embedder: TextEmbedder, paths: Mapping[int, str], texts: Sequence[str]
) -> Iterator[tuple[int, Tensor]]:
    """Yield (layer, states [tokens, width]) that enter the modules at the end of these paths, by chunk.

    No text is padded, so every state belongs to a token.

    Raises:
        CheckpointError: if the model has no module at one of the paths.
    """
    modules = dict(embedder.encoder.module.named_modules())
    recorded_states: list[tuple[int, Tensor]] = []
    hooks = []

    def remember(layer: int) -> Any:
        return lambda _, given: recorded_states.append((layer, given[0].flatten(0, -2)))

    for layer, path in paths.items():
        matches = [module for name, module in modules.items() if f".{name}".endswith(f".{path}")]
        if len(matches) != 1:
            raise CheckpointError(f"the loaded model has {len(matches)} modules '{path}', not one")
        hooks.append(matches[0].register_forward_pre_hook(remember(layer)))
    try:
        for _ in embedder.token_states(embedder.tokenise(texts)):
            yield from recorded_states
            recorded_states.clear()
    finally:
        for hook in hooks:
            hook.remove()


def mean_states(
    embedder: TextEmbedder, dense: DenseModel, layers: Sequence[int], texts: Sequence[str]
) -> dict[int, Tensor]:
    """Return the mean of the states that enter each feed-forward block, float64 [width], by layer."""
    import torch

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
    """Write each layer's router, made of the experts' mean states, to a folder; return their locations.

    A part that all means share does not move a token to any expert, as it cancels in the softmax; so the mean
    of all means is subtracted. The rows are scaled to the length that rows of a random router with a standard
    deviation of 0.02 have.

    Raises:
        CheckpointError: if experts have equal mean states, which no router can distinguish.
    """
    import torch
    from safetensors.torch import save_file

    routers = {}
    for layer in means[0]:
        rows = torch.stack([mean[layer] for mean in means])
        rows -= rows.mean(0)
        lengths = rows.norm(dim=1, keepdim=True)
        if not bool((lengths > 0).all()):
            raise CheckpointError(
                f"layer {layer}: the states of an expert's probe set are the mean of all, so no router tells "
                "it apart; give each expert texts of its own, or leave 'probe' out"
            )
        routers[str(layer)] = rows / lengths * 0.02 * math.sqrt(rows.shape[1])
    folder.mkdir(parents=True, exist_ok=True)
    router_tensors = {name: rows.to(getattr(torch, dtype)) for name, rows in routers.items()}
    save_file(router_tensors, folder / "model.safetensors")
    return read_routers(folder)


def read_routers(folder: Path) -> Mapping[int, TensorSpec]:
    """Return the routers that `write_routers` left in a folder, by layer."""
    return {int(name): spec for name, spec in Checkpoint(folder).specs.items()}
