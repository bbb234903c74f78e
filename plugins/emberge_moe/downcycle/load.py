"""The load of experts: measured on texts, or as a training logged it last."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import CheckpointError

if TYPE_CHECKING:
    from emberge import Backbone, Workspace

    from emberge_moe.downcycle.routed_model import RoutedModel


def measure_load(
    routed: RoutedModel, backbone: Backbone, texts: Sequence[str], workspace: Workspace
) -> dict[int, list[float]]:
    """Return by layer the share of all choices, over the texts' tokens, that falls on each expert."""
    import torch

    from emberge_moe.routers import ROUTERS, RouterTaps
    from emberge_moe.upcycle.probe import open_model

    embedder = open_model(routed.checkpoint.folder, backbone, workspace)
    taps = RouterTaps(embedder.encoder.module, ROUTERS[routed.target.name])
    counts = {
        layer: torch.zeros(len(experts), dtype=torch.int64)
        for layer, experts in routed.restored.experts.items()
    }
    with taps:
        for _ in embedder.token_states(embedder.tokenise(texts)):
            # None of the texts is padded, so each choice is a token's.
            for layer, routing in taps.taken.items():
                chosen = routing.chosen.flatten().cpu()
                counts[layer] += torch.bincount(chosen, minlength=len(counts[layer]))
    return {layer: (count.double() / count.sum()).tolist() for layer, count in counts.items()}


def read_load(folder: Path, routed: RoutedModel) -> dict[int, list[float]]:
    """Return by layer the share of each expert that a training in a folder logged last.

    Raises:
        CheckpointError: for a training that logged none of this model's layers.
    """
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    latest = {row["name"]: row["value"] for row in map(json.loads, lines)}
    found = {}
    for layer, experts in routed.restored.experts.items():
        names = [f"load/{layer}/{number}" for number in range(len(experts))]
        if any(name not in latest for name in names):
            raise CheckpointError(
                f"{folder}: has no load of layer {layer}; name a training of this model with the backbone "
                "routed, or measure on a 'probe' set"
            )
        found[layer] = [latest[name] for name in names]
    return found
