"""Texts packed into one row are computed as if alone: windows, positions and kernels of every class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import TokenisedText
from emberge.encoding import find_packing_problem
from emberge_encoder.text_encoder import TextEncoder
from torch import Tensor

from tests.support import tiny
from tests.support.decoders import decoder
from tests.support.tolerance import assert_same_pass

# Windows of 4 and 6 tokens, which texts and rows are longer than.
DECODERS = ("qwen3", "qwen3_moe", "llama", "gemma3_text")
ENCODERS = ("bert", "xlm-roberta", "modernbert")
LENGTHS = ((9, 13, 4), (11, 8))


def _load(root: Path, kind: str, attention: Any = "as is") -> Any:
    if kind in ENCODERS:
        changes: dict[str, Any] = {"local_attention": 6} if kind == "modernbert" else {}
        folder = tiny.transformer(root / kind, "AutoModelForMaskedLM", kind, **changes)
    else:
        folder = decoder(root / kind, kind, head=True)
    backbone = TextEncoder(pooling="last", attention=attention)
    encoder: Any = backbone.load(folder, device="cpu", dtype="float32", predicts_tokens=True)
    encoder.module.eval()
    return encoder


def _texts(encoder: Any) -> list[list[TokenisedText]]:
    generator = torch.Generator().manual_seed(0)
    return [
        [
            TokenisedText(
                torch.randint(5, encoder.vocabulary, (size,), generator=generator).tolist()
            )
            for size in row
        ]
        for row in LENGTHS
    ]


def _packed(encoder: Any, rows: list[list[TokenisedText]]) -> list[list[Tensor]]:
    """States of each text of each row."""
    with torch.no_grad():
        states = encoder.states(encoder.pack(rows))
    return [
        list(states[i, : sum(lengths)].split(list(lengths))) for i, lengths in enumerate(LENGTHS)
    ]


@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        *((kind, attention) for kind in DECODERS for attention in ("bidirectional", "causal")),
        *((kind, "as is") for kind in ENCODERS),
    ],
)
def test_a_text_in_a_row_is_computed_as_if_alone(kind: str, attention: Any, tmp_path: Path) -> None:
    encoder = _load(tmp_path, kind, attention)
    rows = _texts(encoder)
    with torch.no_grad():
        for row, found in zip(rows, _packed(encoder, rows), strict=True):
            for text, states in zip(row, found, strict=True):
                alone = encoder.states(encoder.collate([text]))[0]
                assert_same_pass(states, alone, encoder.layout.folder)
    assert find_packing_problem(encoder) == ""


def test_a_row_is_padded_and_says_which_text_a_token_is_of(tmp_path: Path) -> None:
    encoder = _load(tmp_path, "qwen3")
    features = encoder.pack([[TokenisedText([7, 8]), TokenisedText([9])], [TokenisedText([5])]])
    assert features["input_ids"].tolist() == [[7, 8, 9], [5, 0, 0]]
    assert features["position_ids"].tolist() == [[0, 1, 0], [0, 0, 0]]
    assert features["documents"].tolist() == [[0, 0, 1], [0, -1, -1]]
    assert features["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
