"""Packed weights: the same embeddings, and layers that are left as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from emberge import Encoder
from emberge.encoding import packed_linear as packed
from emberge.encoding.gradient_cache import forward
from emberge.encoding.packed_linear import PackedWeights
from emberge.engine import TextEmbedder
from emberge_encoder.text_encoder import TextEncoder

from tests.support.tiny import WORDS
from tests.support.tolerance import assert_same_pass

TEXTS = [" ".join(WORDS[i : i + 1 + i % 7]) for i in range(30)]


def _encoder(folder: Path, dtype: str = "float32") -> Encoder:
    encoder = TextEncoder().load(folder, device="cpu", dtype=dtype)
    encoder.module.eval()
    return encoder


def _plain(encoder: Encoder) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    with torch.no_grad():
        tokens = encoder.tokenise(TEXTS, prompt="", max_length=None)
        return forward(encoder, tokens).embeddings.float().numpy()


def _swapped(encoder: Encoder) -> list[str]:
    return [name for name, m in encoder.module.named_modules() if "forward" in vars(m)]


def test_packed_weights_embed_as_plain_ones(bert: Path) -> None:
    encoder = _encoder(bert)
    expected = _plain(encoder)
    assert_same_pass(TextEmbedder(encoder).embed(TEXTS), expected, bert)


def test_layers_multiply_by_packed_weights_only_inside(bert: Path) -> None:
    encoder = _encoder(bert)
    pack = PackedWeights(encoder.module)
    with pack.used(64):
        assert len(_swapped(encoder)) >= 6
    assert not _swapped(encoder)


def test_weights_that_were_trained_since_are_packed_anew(bert: Path) -> None:
    encoder = _encoder(bert)
    embedder = TextEmbedder(encoder)
    before = embedder.embed(TEXTS)
    with torch.no_grad():
        for parameter in encoder.module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    after = embedder.embed(TEXTS)
    assert np.abs(after - before).max() > 1e-2
    assert_same_pass(after, _plain(encoder), bert)


def test_other_precisions_and_large_models_run_as_they_are(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halved, whole = _encoder(bert, "bfloat16"), _encoder(bert)
    with PackedWeights(halved.module).used(64):
        assert not _swapped(halved)
    monkeypatch.setattr(packed, "MOST_BYTES", 100)
    with PackedWeights(whole.module).used(64):
        assert not _swapped(whole)
