"""Losses that predict a token from the place before it: masked next tokens, and all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import TokenLoss, Tokens
from emberge_train.losses.causal_lm import CausalLM
from emberge_train.losses.mlm import MLM
from emberge_train.losses.mntp import MNTP

from tests.support import tiny
from tests.support.exact import in_float64
from tests.support.tolerance import exactly


def _text(size: int = 60, seed: int = 0) -> Tokens:
    ids = np.random.default_rng(seed).integers(5, 50, size)
    return Tokens(ids, np.zeros(size, bool), 4, 50)


def _qwen(folder: Path, *, tied: bool, causal: bool) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    path = tiny.transformer(folder, "AutoModelForCausalLM", "qwen3", tie_word_embeddings=tied)
    config = AutoConfig.from_pretrained(path)
    config.is_causal = causal
    return AutoModelForCausalLM.from_pretrained(path, config=config, dtype=torch.float64).eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("loss", "causal"), [(MNTP(share=0.3), False), (MNTP(share=0.9), False), (CausalLM(), True)]
)
def test_it_is_transformers_own_shifted_loss(
    loss: TokenLoss, causal: bool, tied: bool, tmp_path: Path
) -> None:
    model = _qwen(tmp_path / "m", tied=tied, causal=causal)
    texts = [loss.corrupt(_text(seed=seed), 3) for seed in (1, 2)]
    ids, labels = (torch.from_numpy(np.stack(part)) for part in zip(*texts, strict=True))
    with torch.no_grad(), in_float64():
        expected = model(input_ids=ids, labels=labels).loss
        found = loss(model.model(input_ids=ids)[0], labels, model.lm_head)
    # Their own loss is computed in float32.
    assert float(found) == pytest.approx(float(expected), abs=1e-6)


def test_a_label_is_scored_by_the_state_before_it() -> None:
    states = torch.eye(4, dtype=torch.float64)[None] * 50
    labels = torch.tensor([[-100, 0, -100, 2]])
    for loss in (MNTP(), CausalLM()):
        assert float(loss(states, labels, lambda state: state)) == exactly(0.0)
    assert float(MLM()(states, labels, lambda state: state)) > 1


def test_a_first_token_is_neither_hidden_nor_scored() -> None:
    for seed in range(20):
        text = _text(5, seed)
        ids, labels = MNTP(share=1.0).corrupt(text, seed)
        assert (ids[0], labels[0]) == (text.ids[0], -100)
        assert (ids[1:] == 4).all()
        assert not text.spared.any()


def test_all_tokens_but_the_first_are_scored_and_none_is_hidden() -> None:
    text = _text()
    text.spared[-1] = True
    ids, labels = CausalLM().corrupt(text, 1)
    assert ids.tolist() == text.ids.tolist()
    assert labels.tolist() == [-100, *text.ids[1:].tolist()]


def test_it_hides_the_places_that_mlm_hides() -> None:
    text = _text(300)
    (first, labels), (second, _) = (loss.corrupt(text, 1) for loss in (MLM(), MNTP()))
    assert labels[0] >= 0 or first[0] == second[0]
    assert (first[1:] == second[1:]).all()
