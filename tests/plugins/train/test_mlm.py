"""Losses over tokens: their numbers beside transformers' own, and their laws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import TokenLoss, Tokens
from emberge.contracts import LinearHead
from emberge_train.losses.token_losses import MLM, MNTP, CausalLM
from torch import Tensor, nn

from tests.support import tiny
from tests.support.exact import in_float64
from tests.support.tolerance import assert_near, exactly, near

# A state's width in the head's matrix, in its norm and in the table of words; the words; the places.
SUMMED = 4 * 32 + 140 + 60


def _text(size: int = 2000) -> Tokens:
    ids = np.random.default_rng(0).integers(5, 90, size)
    spared = np.zeros(size, bool)
    spared[:10] = True
    return Tokens(ids, spared, 4, 90)


LOSSES = [MLM(share=0.2, masked=0.8, random=0.1), MNTP(), CausalLM()]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_corruption_is_a_function_of_text_and_seed(loss: TokenLoss) -> None:
    text = _text()
    before = text.ids.copy()
    (ids, labels), again, (other, _) = (loss.corrupt(text, seed) for seed in (1, 1, 2))
    assert np.array_equal(before, text.ids)
    assert np.array_equal(np.stack(again), np.stack([ids, labels]))
    assert np.array_equal(ids, other) == loss.causal
    assert ids.dtype == labels.dtype == np.int64
    assert ids.shape == labels.shape == text.ids.shape
    assert ((ids >= 0) & (ids < text.vocabulary)).all()
    scored = labels != -100
    assert (labels[scored] == text.ids[scored]).all()
    assert (ids[~scored] == text.ids[~scored]).all()
    assert loss.causal or not scored[text.spared].any()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_the_mean_over_scored_places_alone(loss: TokenLoss) -> None:
    torch.manual_seed(0)
    head = nn.Linear(8, 90).requires_grad_(False)
    labels = torch.stack([torch.from_numpy(loss.corrupt(_text(40), s)[1]) for s in (1, 2, 3)])
    labels[2, 9:] = -100
    hidden = torch.randn(*labels.shape, 8, requires_grad=True)
    whole = loss(hidden, labels, head)
    (pull,) = torch.autograd.grad(whole, hidden)
    count = (labels != -100).sum(1)
    rows = [slice(i, i + 1) for i in range(len(labels))]
    parts = torch.stack([loss(hidden[row], labels[row], head) for row in rows]).detach()
    mean = float((parts * count).sum() / count.sum())
    assert float(whole.detach()) == pytest.approx(mean, rel=1e-5)
    relevant = labels != -100
    relevant[:, :-1] |= relevant[:, 1:].clone()  # a place may predict the next one
    assert pull.any()
    assert not pull[~relevant].any()
    nothing = loss(hidden, torch.full_like(labels, -100), head)
    assert nothing == 0
    assert not torch.autograd.grad(nothing, hidden)[0].any()


def test_shares_are_what_they_say() -> None:
    text = _text(200_000)
    ids, labels = MLM(share=0.3, masked=0.8, random=0.1).corrupt(text, 5)
    scored = labels >= 0
    hidden = scored & (ids == text.mask_id)
    other = scored & ~hidden & (ids != text.ids)
    assert scored[10:].mean() == pytest.approx(0.3, abs=0.005)
    assert hidden.sum() / scored.sum() == pytest.approx(0.8, abs=0.005)
    assert other.sum() / scored.sum() == pytest.approx(0.1 * 89 / 90, abs=0.005)
    ids, labels = MLM().corrupt(text, 5)
    assert (ids[labels >= 0] == text.mask_id).all()


def _states(folder: Path, ids: Tensor) -> tuple[Any, Tensor]:
    from transformers import AutoModelForMaskedLM

    model: Any = AutoModelForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        return model, model.bert(ids)[0]


def test_it_is_transformers_own_loss_with_the_models_own_head(tmp_path: Path) -> None:
    folder = tiny.transformer(tmp_path / "bert", "AutoModelForMaskedLM")
    text = _text(60)
    ids, labels = (torch.from_numpy(array)[None] for array in MLM().corrupt(text, 3))
    model, states = _states(folder, ids)
    with torch.no_grad():
        expected = model(input_ids=ids, labels=labels).loss
        found = MLM()(states, labels, model.cls)
    assert float(found) == near(float(expected), addends=SUMMED)


def test_logits_are_never_held_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    import emberge.numerics.score_tables as vectors

    torch.manual_seed(0)
    head = nn.Linear(8, 500)
    seen: list[int] = []

    def counted(states: Tensor) -> Tensor:
        seen.append(len(states))
        return head(states)  # type: ignore[no-any-return]

    def pulled() -> tuple[float, Tensor, Tensor]:
        head.zero_grad()
        states = hidden.clone().requires_grad_()
        value = MLM()(states, labels, counted)
        value.backward()
        assert states.grad is not None
        assert head.weight.grad is not None
        return value.item(), states.grad, head.weight.grad.clone()

    hidden, labels = torch.randn(4, 50, 8), torch.randint(0, 500, (4, 50))
    whole = pulled()
    assert max(seen) == 200
    seen.clear()
    monkeypatch.setattr(vectors, "MOST_CELLS", 500 * 16)
    in_blocks = pulled()
    assert max(seen) == 16
    # Over logits and, of the head's weights, over places.
    assert whole[0] == near(in_blocks[0], addends=500 + 200)
    assert_near(whole[1], in_blocks[1], addends=500)
    assert_near(whole[2], in_blocks[2], addends=200)


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_head_computes_loss_and_gradients_together(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import emberge_train.losses.token_losses as prediction

    torch.manual_seed(0)
    first, last = nn.Linear(8, 12), nn.Linear(12, 500, bias=bias)
    hidden, labels = torch.randn(4, 50, 8), torch.randint(0, 500, (4, 50))
    labels[0, :7] = -100

    def pulled(head: Any) -> list[Tensor]:
        for module in (first, last):
            module.zero_grad()
        states = hidden.clone().requires_grad_()
        value = MLM()(states, labels, head)
        value.backward()
        parameters = [*first.parameters(), *last.parameters()]
        return [
            value.detach(),
            *(one.grad.clone() for one in (states, *parameters) if one.grad is not None),
        ]

    expected = pulled(nn.Sequential(first, last))
    monkeypatch.setattr(prediction, "KEPT_LOGITS", 1000)
    monkeypatch.setattr(prediction, "MOST_ROWS", 32)
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", None)
    found = pulled(LinearHead(first, last.weight, last.bias))
    assert len(found) == len(expected) == (6 if bias else 5)
    for mine, theirs in zip(found, expected, strict=True):
        assert_near(mine, theirs, addends=500 + 200)


# ── a token is predicted from the place before it ───────────────────────────────────────────────


def _unspared(size: int = 60, seed: int = 0) -> Tokens:
    ids = np.random.default_rng(seed).integers(5, 50, size)
    return Tokens(ids, np.zeros(size, bool), 4, 50)


def _qwen(folder: Path, *, tied: bool, causal: bool) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    path = tiny.transformer(folder, "AutoModelForCausalLM", "qwen3", tie_word_embeddings=tied)
    config = AutoConfig.from_pretrained(path)
    config.is_causal = causal
    return AutoModelForCausalLM.from_pretrained(path, config=config, dtype=torch.float64).eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("loss", "causal"), [(MNTP(share=0.3), False), (CausalLM(), True)])
def test_it_is_transformers_own_shifted_loss(
    loss: TokenLoss, causal: bool, tied: bool, tmp_path: Path
) -> None:
    model = _qwen(tmp_path / "m", tied=tied, causal=causal)
    texts = [loss.corrupt(_unspared(seed=seed), 3) for seed in (1, 2)]
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
        text = _unspared(5, seed)
        ids, labels = MNTP(share=1.0).corrupt(text, seed)
        assert (ids[0], labels[0]) == (text.ids[0], -100)
        assert (ids[1:] == 4).all()
        assert not text.spared.any()


def test_all_tokens_but_the_first_are_scored_and_none_is_hidden() -> None:
    text = _unspared()
    text.spared[-1] = True
    ids, labels = CausalLM().corrupt(text, 1)
    assert ids.tolist() == text.ids.tolist()
    assert labels.tolist() == [-100, *text.ids[1:].tolist()]
