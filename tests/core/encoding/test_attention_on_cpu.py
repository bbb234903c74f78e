"""Attention of a training in bfloat16 on a CPU: short texts take plain products, all else torch's kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from emberge.contracts import TokenisedText
from emberge.encoding import EncodePlan, encode_and_backward
from emberge_encoder import TextEncoder
from torch.profiler import ProfilerActivity, profile

from tests.support import tiny

PLAIN = "aten::_scaled_dot_product_attention_math"
FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"


@pytest.fixture(scope="module")
def modern_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ModernBERT: it has no dropout, which torch's fused attention on a CPU does not compute."""
    return tiny.transformer(tmp_path_factory.mktemp("still") / "bert", architecture="modernbert")


def _run(
    folder: Path,
    tokens: int,
    dtype: torch.dtype | None,
    *,
    recompute: bool = False,
    kept: int | None = None,
) -> tuple[set[str], Mapping[str, torch.Tensor]]:
    """Return the kernels of attention and the gradients of a pass over four texts of this many tokens."""
    backbone = TextEncoder(gradient_checkpointing=recompute, pooling="mean")
    encoder = backbone.load(folder, device="cpu", dtype="float32")
    encoder.module.train()
    ids = [[2, *(5 + (n + place) % 40 for place in range(tokens - 2)), 3] for n in range(4)]
    texts = list(map(TokenisedText, ids))
    target = torch.linspace(-1, 1, 4 * encoder.dimension).view(4, -1)
    with profile(activities=[ProfilerActivity.CPU]) as record:
        encode_and_backward(
            encoder,
            texts,
            lambda batch: (batch.embeddings.float() - target).square().sum(),
            EncodePlan(10**6, kept, autocast=dtype, draws_random=False),
            seed=0,
        )
    kernels = {event.key for event in record.key_averages()} & {PLAIN, FUSED}
    return kernels, {n: p.grad for n, p in encoder.module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("tokens", "dtype", "recompute", "expected"),
    [
        (20, torch.bfloat16, False, PLAIN),
        (128, torch.bfloat16, False, PLAIN),
        (129, torch.bfloat16, False, FUSED),
        (20, None, False, FUSED),
        (20, torch.bfloat16, True, FUSED),
    ],
)
def test_short_texts_in_bfloat16_take_plain_products(
    modern_bert: Path, tokens: int, dtype: torch.dtype | None, recompute: bool, expected: str
) -> None:
    kernels, _ = _run(modern_bert, tokens, dtype, recompute=recompute)
    assert kernels == {expected}


def test_a_repeated_pass_computes_the_same_attention(modern_bert: Path) -> None:
    kernels, repeated = _run(modern_bert, 20, torch.bfloat16, kept=0)
    _, plain = _run(modern_bert, 20, torch.bfloat16)
    assert kernels == {PLAIN}
    for name, gradient in plain.items():
        assert torch.equal(gradient, repeated[name]), name
