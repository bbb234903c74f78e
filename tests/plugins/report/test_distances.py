"""Distances from the base are what torch computes on whole models, whatever the pieces."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from emberge import CheckpointError, Model
from emberge.merging import whole_model
from emberge.tensor_names import layer_of, layer_order
from emberge_report.report_data import kinship, layer_distances
from safetensors.torch import load_file, save_file

from tests.support import tiny
from tests.support.peft_adapters import save_adapter


def model(folder: Path, adapter: Path | None = None) -> Model:
    return Model(folder.name, folder, "", adapter=adapter)


def directly(base: Path, other: Path) -> dict[str, float]:
    """Relative Frobenius norms by layer, from whole models in float64."""
    old, new = load_file(base / "model.safetensors"), load_file(other / "model.safetensors")
    sums: dict[str, list[float]] = {}
    for name, before in old.items():
        moved = new[name].double() - before.double()
        layer = sums.setdefault(layer_of(name), [0.0, 0.0])
        layer[0] += float((moved**2).sum())
        layer[1] += float((before.double() ** 2).sum())
    sums["all"] = [sum(s[i] for s in sums.values()) for i in (0, 1)]
    return {layer: (moved / size) ** 0.5 for layer, (moved, size) in sums.items()}


def test_distances_agree_with_torch_on_whole_models(bert: Path, berts: list[Path]) -> None:
    found = layer_distances(model(bert), model(berts[0]))
    expected = directly(bert, berts[0])
    assert found.total == pytest.approx(expected.pop("all"), rel=1e-6)
    assert found.layers == pytest.approx(expected, rel=1e-6)
    assert list(found.layers)[:4] == ["embeddings", "layers.0", "layers.1", "layers.2"]
    assert not found.left_out


def test_a_model_lies_nowhere_from_itself(bert: Path) -> None:
    found = layer_distances(model(bert), model(bert))
    assert found.total == 0
    assert set(found.layers.values()) == {0.0}


def test_dtypes_shards_and_prefixes_do_not_hide_a_tensor(
    bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    wrapped = tmp_path / "wrapped"
    shutil.copytree(berts[0], wrapped)
    tensors = load_file(wrapped / "model.safetensors")
    renamed = {f"bert.{name}": tensor.double() for name, tensor in tensors.items()}
    save_file(renamed, wrapped / "model.safetensors", {"format": "pt"})
    plain = layer_distances(model(bert), model(berts[0]))
    assert layer_distances(model(bert), model(wrapped)).layers == pytest.approx(plain.layers)

    sharded = tiny.checkpoint(tmp_path / "sharded", seed=1, like=bert, max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    assert layer_distances(model(bert), model(sharded)).layers == pytest.approx(plain.layers)


def test_tensors_of_other_shapes_are_named_and_left_out(bert: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(bert, other)
    tensors = load_file(other / "model.safetensors")
    name = "embeddings.position_embeddings.weight"
    tensors[name] = torch.cat([tensors[name], tensors[name]])
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    found = layer_distances(model(bert), model(other))
    assert found.left_out == (name,)
    assert found.total == 0


def test_models_without_a_common_tensor_are_refused(bert: Path, tmp_path: Path) -> None:
    other = tiny.checkpoint(tmp_path / "modern", "modernbert", hidden_size=48)
    with pytest.raises(CheckpointError, match="no tensor in common"):
        layer_distances(model(bert), model(other))


def test_an_adapter_is_as_far_as_the_whole_model(bert: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter", bert, use_dora=True)
    one = model(bert, adapter=adapter)
    found = layer_distances(model(bert), one)
    with whole_model(Model("whole", bert, "", adapter=adapter), tmp_path) as folder:
        assert found.layers == layer_distances(model(bert), model(folder)).layers
    assert found.layers["layers.1"] > 0.01
    assert found.layers["embeddings"] == 0


def test_layers_stand_in_the_order_of_the_model() -> None:
    mixed = ["pooler", "layers.10", "final", "visual.blocks.2", "layers.2", "embeddings"]
    ordered = ["embeddings", "layers.2", "layers.10", "visual.blocks.2", "final", "pooler"]
    assert layer_order(mixed) == ordered


def test_parents_of_a_merge_are_called_what_their_changes_are(
    bert: Path, berts: list[Path]
) -> None:
    parents = [model(folder) for folder in berts[:3]]
    assert kinship(model(bert), parents).partition(",")[0] in ("siblings", "relatives", "strangers")
    assert kinship(model(bert), [parents[0], model(bert)]) == ""
