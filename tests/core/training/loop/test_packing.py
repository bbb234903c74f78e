"""Packed trainings: the same losses, gradients and models as of single rows, on any ranks, after any kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import CheckpointError, PerDataset, TokenLoss
from emberge.encoding import EncodePlan, PassResult, corrupt_text, predict_and_backward
from emberge.encoding.token_pass import pack_rows
from emberge.training import FitOptions
from emberge_train import MLM, MNTP, CausalLM

from tests.support import tiny
from tests.support.decoders import decoder
from tests.support.exact import ExactEncoder
from tests.support.token_training import OPTIONS, fit_tokens, losses_of
from tests.support.tolerance import exactly
from tests.support.training_data import texts

LENGTH = 100


def _folder(root: Path, kind: str) -> Path:
    if kind in ("bert", "xlm-roberta", "modernbert"):
        return tiny.transformer(root / kind, "AutoModelForMaskedLM", kind)
    return decoder(root / kind, kind, head=True)


def _backbone(kind: str, *, causal: bool = False, **options: Any) -> ExactEncoder:
    if kind in ("bert", "xlm-roberta", "modernbert"):
        return ExactEncoder(pooling="mean", **options)
    attention = "causal" if causal else "bidirectional"
    return ExactEncoder(pooling="last", attention=attention, **options)


def _passed(
    folder: Path, backbone: ExactEncoder, loss: TokenLoss, **plan: Any
) -> tuple[PassResult, dict[str, torch.Tensor]]:
    encoder: Any = backbone.load(folder, device="cpu", dtype="float32", predicts_tokens=True)
    encoder.module.eval()
    data = texts(30)
    lines = [data[row].anchor for row in range(len(data))]
    read = encoder.tokenise(lines, prompt="", max_length=64)
    given = [corrupt_text(encoder, text, loss, seed) for seed, text in enumerate(read)]
    result = predict_and_backward(encoder, given, loss, EncodePlan(**plan), seed=1)
    gradients = {
        name: value.grad.clone()
        for name, value in encoder.module.named_parameters()
        if value.grad is not None
    }
    return result, gradients


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("qwen3", MNTP(share=0.4)),
        ("qwen3", CausalLM()),
        ("gemma3_text", MNTP(share=0.4)),
        ("modernbert", MLM(share=0.4)),
        ("bert", MLM(share=0.4)),
    ],
)
def test_loss_and_gradients_are_those_of_single_rows(
    kind: str, loss: TokenLoss, tmp_path: Path
) -> None:
    folder = _folder(tmp_path, kind)
    backbone = _backbone(kind, causal=loss.causal)
    single, expected = _passed(folder, backbone, loss, token_budget=300)
    packed, found = _passed(folder, backbone, loss, token_budget=300, packing=LENGTH)
    assert packed.padded_tokens < single.padded_tokens
    assert packed.tokens == single.tokens
    assert float(packed.loss) == pytest.approx(float(single.loss), rel=1e-6)
    largest = max(float(value.abs().max()) for value in expected.values())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # Kernels and norms compute a part in float32.
        assert torch.allclose(found[name], value, rtol=0, atol=1e-6 * largest), name


def test_rows_are_filled_with_the_longest_texts_first() -> None:
    rows = pack_rows([4, 9, 3, 6, 12, 1], 10)
    assert [row.tolist() for row in rows] == [[4], [1, 5], [3, 0], [2]]
    assert pack_rows([], 10) == []
    sizes = np.random.default_rng(0).integers(1, 50, 200)
    rows = pack_rows(sizes, 64)
    assert sorted(np.concatenate(rows).tolist()) == list(range(200))
    assert max(sizes[row].sum() for row in rows) <= 64
    assert sum(sizes) > 0.95 * 64 * len(rows)


def _packed(packing: int | None) -> FitOptions:
    return FitOptions(**OPTIONS, packing=packing)


def test_a_packed_training_is_that_of_single_rows(tmp_path: Path) -> None:
    model = _folder(tmp_path, "qwen3")
    given: dict[str, Any] = {"backbone": _backbone("qwen3"), "datasets": [texts(21)]}
    given["losses"] = PerDataset(default=(MNTP(share=0.4),))
    found = [
        losses_of(fit_tokens(model, tmp_path / str(packing), options=_packed(packing), **given))
        for packing in (None, LENGTH)
    ]
    assert len(found[0]) > 5
    for losses in found[1:]:
        assert losses == exactly(found[0])


def test_a_model_that_cannot_be_packed_is_refused_before_work(tmp_path: Path) -> None:
    model = decoder(tmp_path / "lfm2", "lfm2", head=True)
    backbone, losses = ExactEncoder(pooling="last"), PerDataset(default=(CausalLM(),))
    with pytest.raises(CheckpointError, match=r"Lfm2Model .*take packing out"):
        fit_tokens(model, tmp_path, backbone=backbone, losses=losses, options=_packed(LENGTH))
    assert not (tmp_path / "out").exists()
