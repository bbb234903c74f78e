"""Reordered weights: the same embeddings, and layers that are left as they were."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from emberge import Encoder
from emberge.encoding import TextEmbedder, forward, reordered_weights
from emberge.encoding.reordered_weights import ReorderedWeights
from emberge_encoder import TextEncoder

from tests.support.tiny import WORDS
from tests.support.tolerance import assert_same_pass

TEXTS = [" ".join(WORDS[i : i + 1 + i % 7]) for i in range(30)]


def _encoder(folder: Path) -> Encoder:
    encoder = TextEncoder().load(folder, device="cpu", dtype="float32")
    encoder.module.eval()
    return encoder


def _plain(encoder: Encoder) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    with torch.no_grad():
        tokens = encoder.tokenise(TEXTS, prompt="", max_length=None)
        return forward(encoder, tokens).embeddings.float().numpy()


def test_weights_that_were_trained_since_are_reordered_again(bert: Path) -> None:
    encoder = _encoder(bert)
    embedder = TextEmbedder(encoder)
    before = embedder.embed(TEXTS)
    assert_same_pass(before, _plain(encoder), bert)
    with torch.no_grad():
        for parameter in encoder.module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    after = embedder.embed(TEXTS)
    assert np.abs(after - before).max() > 1e-2
    assert_same_pass(after, _plain(encoder), bert)


@pytest.fixture
def layers() -> torch.nn.Module:
    """Two layers of float32, without a bias and with one."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.Linear(3, 2)).eval()


def _inside(module: torch.nn.Module, pack: ReorderedWeights | None = None) -> int:
    """Return how many layers use reordered weights inside."""
    with (pack or ReorderedWeights(module)).use_reordered(8):
        return sum("forward" in vars(m) for m in module.modules())


def test_a_reordered_layer_multiplies_and_adds_its_bias(layers: torch.nn.Module) -> None:
    values = torch.randn(5, 4)
    with torch.no_grad():
        expected = layers(values)
        with ReorderedWeights(layers).use_reordered(8):
            torch.testing.assert_close(layers(values), expected)


def test_weights_are_reordered_once_until_they_change(
    layers: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    packings: list[int] = []
    operators = SimpleNamespace(
        _reorder_linear_weight=lambda weight, rows: packings.append(rows) or weight
    )
    monkeypatch.setattr(torch.ops, "mkldnn", operators)
    pack = ReorderedWeights(layers)
    assert _inside(layers, pack) == _inside(layers, pack) == 2
    assert packings == [8, 8]
    with torch.no_grad():
        layers[1].weight.add_(1)  # type: ignore[operator, index, union-attr]
    assert _inside(layers, pack) == 2
    assert packings == [8, 8, 8]
    layers[0].weight.data = torch.randn(3, 4)  # type: ignore[index]
    assert _inside(layers, pack) == 2
    assert packings == [8, 8, 8, 8]


def test_layers_are_left_as_they_were_after_an_error(layers: torch.nn.Module) -> None:
    with pytest.raises(KeyError), ReorderedWeights(layers).use_reordered(8):
        raise KeyError
    assert not [m for m in layers.modules() if "forward" in vars(m)]


def test_layers_that_are_not_plain_run_as_they_are(
    layers: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 4 * (4 * 3 + 3 * 2)
    for limit, used in ((most, 2), (most - 1, 0)):
        monkeypatch.setattr(reordered_weights, "MOST_BYTES", limit)
        assert _inside(layers) == used
    monkeypatch.undo()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert _inside(layers) == 0
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert _inside(layers) == 0
    monkeypatch.undo()

    class Own(torch.nn.Linear):
        pass

    assert _inside(torch.nn.Sequential(Own(4, 3))) == 0
    assert _inside(torch.nn.Sequential(torch.nn.Linear(4, 3, device="meta"))) == 0
    assert _inside(layers.double()) == _inside(layers.bfloat16()) == 0
    layers.float()

    own = layers[1].forward  # type: ignore[index]
    layers[1].forward = own  # type: ignore[index]
    assert _inside(layers) == 2
    assert vars(layers[1])["forward"] == own, "another's forward stays"  # type: ignore[index]
