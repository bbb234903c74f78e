"""Laws of emberge that the plugin's components keep, and the numbers that their documentation promises."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import (
    Block,
    Embeddings,
    PerTensor,
    Plugins,
    check_recipe,
    load_plugins,
    merge_blocks,
    parse_recipe,
    run_recipe,
)
from emberge.testing import check_loss, check_strategy
from safetensors.torch import load_file, save_file

import emberge_acme
from emberge_acme.keep_norm import KeepNorm, KeepNormPlain
from emberge_acme.uniformity import Uniformity


def block(*models: list[list[float]], weights: tuple[float, ...]) -> Block:
    tensors = torch.tensor(models, dtype=torch.float64)
    return Block.of(tensors, weights=weights)


WAYS = pytest.mark.parametrize("way", [KeepNorm, KeepNormPlain])


@WAYS
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_keep_norm_obeys_the_laws(way: type[KeepNorm], strength: float) -> None:
    check_strategy(way(strength=PerTensor(strength)), one_hot=True)


@WAYS
def test_keep_norm_by_hand(way: type[KeepNorm]) -> None:
    # Two models at a right angle, 3 and 4 long: their mean is 2.5 long, and their mean length 3.5.
    both = block([[3.0, 0.0]], [[0.0, 4.0]], weights=(0.5, 0.5))
    (merged,) = merge_blocks([way()], [both])
    torch.testing.assert_close(merged, both.tensors.mean(0) * 3.5 / 2.5)
    (plain,) = merge_blocks([way(strength=PerTensor(0))], [both])
    torch.testing.assert_close(plain, both.tensors.mean(0))


def test_models_that_cancel_out_stay_finite() -> None:
    (merged,) = merge_blocks([KeepNorm()], [block([[1.0]], [[-1.0]], weights=(0.5, 0.5))])
    assert merged.item() == 0


@pytest.mark.parametrize("loss", [Uniformity(), Uniformity(spread=0.1, sharpness=5.0)])
def test_uniformity_obeys_the_laws(loss: Uniformity) -> None:
    check_loss(loss)


def test_uniformity_by_hand() -> None:
    # Two anchors at a right angle, each lying on its positive: 2 apart in square, nothing to align.
    right = torch.eye(2, dtype=torch.float64)
    embeddings = Embeddings(
        anchor=right * 5,
        positive=right.unsqueeze(1),
        negative=right.new_zeros(2, 0, 2),
        valid=torch.ones(2, 1, dtype=torch.bool),
        text_id=torch.arange(4).view(2, 2),
    )
    assert Uniformity(sharpness=2.0)(embeddings).item() == pytest.approx(-4)
    half = Uniformity(spread=0.5, sharpness=3.0)
    assert half(embeddings).item() == pytest.approx(0.5 * math.log(math.exp(-6)))


def cut(model: Path, layers: list[int]) -> tuple[Any, Plugins]:
    """A recipe that keeps these layers, and the plugin that it takes."""
    plugins = Plugins()
    plugins.register(emberge_acme, "acme")
    step = {"keep_layers": {"model": str(model), "layers": layers}}
    return parse_recipe(json.dumps({"steps": {"small": step}}), plugins), plugins


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three layers of one row each, and an embedding."""
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"model_type": "bert", "num_hidden_layers": 3}
    (folder / "config.json").write_text(json.dumps(config))
    layers = {f"encoder.layer.{n}.dense.weight": torch.full((1, 4), float(n)) for n in range(3)}
    save_file({**layers, "embeddings.weight": torch.ones(2, 4)}, folder / "model.safetensors")
    return folder


def test_the_layers_that_are_kept_are_numbered_anew(model: Path) -> None:
    recipe, plugins = cut(model, [2, 0])
    assert not check_recipe(recipe, plugins).problems
    out = run_recipe(recipe, model.with_name("out"), plugins, quiet=True)["small"].path
    found = load_file(out / "model.safetensors")
    assert found.pop("embeddings.weight").eq(1).all()
    kept = {name: tensor[0, 0].item() for name, tensor in found.items()}
    assert kept == {"encoder.layer.0.dense.weight": 2, "encoder.layer.1.dense.weight": 0}
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 2


def test_a_layer_that_the_model_does_not_have_is_refused_before_work(model: Path) -> None:
    (problem,) = check_recipe(*cut(model, [0, 3])).problems
    assert "layer 3: the model has 0 to 2" in str(problem)


def test_the_plugin_is_found() -> None:
    plugins = load_plugins()
    if not any(component.plugin == "acme" for component in plugins.components):
        pytest.skip("pip install -e . puts the plugin where emberge finds it")
    assert plugins.find("acme:keep_norm", "merge strategy").type is KeepNorm
    assert plugins.find("acme:uniformity", "loss").type is Uniformity
    assert plugins.find("acme:keep_layers", "step").type is emberge_acme.KeepLayers
