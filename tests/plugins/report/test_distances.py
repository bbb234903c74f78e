"""Distances from the base are what torch computes on whole models, whatever the pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import Model
from emberge.tensor_names import find_layer
from emberge_report.report_data import measure_distances
from emberge_statistics import sort_layers
from safetensors.torch import load_file


def model(folder: Path, adapter: Path | None = None) -> Model:
    return Model(folder.name, folder, "", adapter=adapter)


def directly(base: Path, other: Path) -> dict[str, float]:
    """Relative Frobenius norms by layer, from whole models in float64."""
    old, new = load_file(base / "model.safetensors"), load_file(other / "model.safetensors")
    sums: dict[str, list[float]] = {}
    for name, before in old.items():
        moved = new[name].double() - before.double()
        layer = sums.setdefault(find_layer(name), [0.0, 0.0])
        layer[0] += float((moved**2).sum())
        layer[1] += float((before.double() ** 2).sum())
    sums["all"] = [sum(s[i] for s in sums.values()) for i in (0, 1)]
    return {layer: (moved / size) ** 0.5 for layer, (moved, size) in sums.items()}


def test_distances_agree_with_torch_on_whole_models(bert: Path, berts: list[Path]) -> None:
    found = measure_distances(model(bert), model(berts[0]))
    expected = directly(bert, berts[0])
    assert found.total == pytest.approx(expected.pop("all"), rel=1e-6)
    assert found.layers == pytest.approx(expected, rel=1e-6)
    assert list(found.layers)[:4] == ["embeddings", "layers.0", "layers.1", "layers.2"]
    assert not found.left_out


def test_layers_stand_in_the_order_of_the_model() -> None:
    mixed = ["pooler", "layers.10", "final", "visual.blocks.2", "layers.2", "embeddings"]
    ordered = ["embeddings", "layers.2", "layers.10", "visual.blocks.2", "final", "pooler"]
    assert sort_layers(mixed) == ordered
