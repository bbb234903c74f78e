"""Laws of emberge that the plugin's components keep, and the numbers that their documentation promises."""

from __future__ import annotations

import math

import pytest
import torch
from emberge import Block, Embeddings, PerTensor, load_plugins, merge_blocks
from emberge.testing import check_loss, check_strategy

from emberge_acme.keep_norm import KeepNorm
from emberge_acme.uniformity import Uniformity


def block(*models: list[list[float]], weights: tuple[float, ...]) -> Block:
    tensors = torch.tensor(models, dtype=torch.float64)
    return Block(
        name="layers.0.weight",
        shape=tuple(tensors.shape[1:]),
        layer="layers.0",
        models=tuple(f"model {i}" for i in range(len(models))),
        groups=("",) * len(models),
        tensors=tensors,
        base=None,
        weights=torch.tensor(weights, dtype=torch.float64),
    )


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_keep_norm_obeys_the_laws(strength: float) -> None:
    check_strategy(KeepNorm(strength=PerTensor(strength)), one_hot=True)


def test_keep_norm_by_hand() -> None:
    # Two models at a right angle, 3 and 4 long: their mean is 2.5 long, and their mean length 3.5.
    both = block([[3.0, 0.0]], [[0.0, 4.0]], weights=(0.5, 0.5))
    (merged,) = merge_blocks([KeepNorm()], [both])
    torch.testing.assert_close(merged, both.tensors.mean(0) * 3.5 / 2.5)
    (plain,) = merge_blocks([KeepNorm(strength=PerTensor(0))], [both])
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
    assert Uniformity(sharpness=2.0)(embeddings, {}).item() == pytest.approx(-4)
    half = Uniformity(spread=0.5, sharpness=3.0)
    assert half(embeddings, {}).item() == pytest.approx(0.5 * math.log(math.exp(-6)))


def test_the_plugin_is_found() -> None:
    plugins = load_plugins()
    if not any(component.plugin == "acme" for component in plugins.components):
        pytest.skip("pip install -e . puts the plugin where emberge finds it")
    assert plugins.find("acme:keep_norm", "merge strategy").type is KeepNorm
    assert plugins.find("acme:uniformity", "loss").type is Uniformity
