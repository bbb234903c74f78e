"""Chains of modules, activations computed again, half precision, compilation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError, Encoder
from emberge.encoding import BatchEmbeddings, EncodePlan, TextEmbedder, encode_and_backward
from emberge.testing import check_backbone
from emberge_encoder.text.lora import Lora
from emberge_encoder.text_encoder import TextEncoder
from sentence_transformers import SentenceTransformer

from tests.support import tiny
from tests.support.exact import ExactEncoder
from tests.support.json_files import changing
from tests.support.tolerance import assert_exact, assert_same_pass

TEXTS = ["how to read a file", "Sort a LIST of numbers", "weather", "the last row of a table"]


def _load(backbone: TextEncoder, folder: Path) -> Encoder:
    return backbone.load(folder, device="cpu", dtype="float32")


def _gradients(encoder: Encoder, *, kept: int | None = None, dropout: bool = False) -> Any:
    """Gradients of a batch by name, with an intermediate layer."""
    texts = encoder.tokenise(TEXTS, prompt="", max_length=None)

    def objective(encoded: BatchEmbeddings) -> torch.Tensor:
        return encoded.embeddings[:, 0].sum() + encoded.layers[0.5][:, 1].sum()

    encoder.module.train(dropout)
    plan = EncodePlan(16, kept, draws_random=dropout)
    encode_and_backward(encoder, texts, objective, plan, seed=1, layers=(0.5,))
    return {n: p.grad for n, p in encoder.module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("architecture", ["bert", "modernbert", "qwen3"])
@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_checkpointed_gradients_are_the_plain_ones(
    architecture: str, lora: Lora | None, tmp_path: Path
) -> None:
    source = tiny.checkpoint(tmp_path / "m", architecture)
    plain = _gradients(_load(ExactEncoder(lora=lora), source))
    encoder = _load(ExactEncoder(lora=lora, gradient_checkpointing=True), source)
    for kept in (None, 0):  # the graph of every chunk, and of none
        encoder.module.zero_grad()
        found = _gradients(encoder, kept=kept)
        assert_exact(found, plain)


@pytest.mark.parametrize("dropout", [False, True])
def test_checkpointing_keeps_less_for_the_backward_pass(dropout: bool, tmp_path: Path) -> None:
    from emberge.encoding import count_saved_bytes

    source = tiny.checkpoint(tmp_path / "m", num_hidden_layers=4)
    kept = []
    for backbone in (TextEncoder(), TextEncoder(gradient_checkpointing=True)):
        encoder = _load(backbone, source)
        encoder.module.train(dropout)
        features = encoder.collate(encoder.tokenise(TEXTS, prompt="", max_length=None))
        with count_saved_bytes(encoder.module) as saved:
            encoder(features).embeddings.sum().backward()  # type: ignore[no-untyped-call]
        kept.append(saved.count)
    assert kept[1] < kept[0] / 2


def test_with_dropout_both_passes_draw_the_same(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m", "xlm-roberta")  # with dropout of its own
    plain = _gradients(_load(ExactEncoder(), source), dropout=True)
    found = _gradients(_load(ExactEncoder(gradient_checkpointing=True), source), dropout=True)
    assert_exact(found, plain)
    still = _gradients(_load(ExactEncoder(), source))
    assert any(not torch.allclose(plain[n], still[n], atol=1e-4) for n in plain)


def test_a_chain_of_stock_modules_keeps_the_laws(tmp_path: Path) -> None:
    """Pooling, Dense, LayerNorm, Dense, Normalize."""
    source = tiny.projected(tmp_path / "m")
    encoder = _load(TextEncoder(), source)
    plain = SentenceTransformer(str(source), device="cpu").encode(TEXTS, show_progress_bar=False)
    assert encoder.dimension == 8
    assert_same_pass(TextEmbedder(encoder).embed(TEXTS), plain, source)
    check_backbone(TextEncoder(), source)


@pytest.mark.parametrize("kind", ["Router", "CNN"])
def test_modules_that_cannot_follow_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m")
    with changing(source / "modules.json") as modules:
        modules[2]["type"] = f"sentence_transformers.models.{kind}"
    (fault,) = TextEncoder().describe(source).problems
    said = "is not known to work after a Transformer"
    assert f"{source}/modules.json: module '{kind}' {said}" in fault
    with pytest.raises(CheckpointError, match=kind):
        _load(TextEncoder(), source)


def test_half_precision_weights_are_loaded_trained_and_saved(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m")
    encoder = _load(TextEncoder(dtype="bfloat16"), source)
    assert {p.dtype for p in encoder.module.parameters()} == {torch.bfloat16}
    (tmp_path / "saved").mkdir()
    encoder.save(tmp_path / "saved")
    plain = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert next(plain.parameters()).dtype == torch.bfloat16
    assert all(g.isfinite().all() for g in _gradients(encoder).values())
    # The weights are compared in float64: half precision rounds the result of every operation.
    encoder.module.double().eval()
    theirs = plain.double().encode(TEXTS, show_progress_bar=False)
    assert_same_pass(TextEmbedder(encoder).embed(TEXTS), theirs, source)


def test_an_adapter_on_half_precision_is_trained_in_whole(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m")
    encoder = _load(TextEncoder(dtype="bfloat16", lora=Lora(rank=2)), source)
    trained = {p.dtype for p in encoder.module.parameters() if p.requires_grad}
    frozen = {p.dtype for p in encoder.module.parameters() if not p.requires_grad}
    assert (trained, frozen) == ({torch.float32}, {torch.bfloat16})
