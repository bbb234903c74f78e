from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from emberge.contracts import Encoder, TokenisedText
from emberge.encoding import (
    BatchEmbeddings,
    EncodePlan,
    TextEmbedder,
    compute_token_states,
    encode_and_backward,
)
from emberge.encoding.chunks import count_padded_tokens, cut_chunks
from emberge_encoder import TextEncoder
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel

from tests.support import tiny
from tests.support.tolerance import assert_same_pass

TEXTS = [" ".join(tiny.WORDS[i : i + 1 + i % 7]) for i in range(24)]


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 500))
@settings(max_examples=60, deadline=None)
def test_chunks_hold_every_text_once_within_the_budget(lengths: list[int], budget: int) -> None:
    pieces = cut_chunks(lengths, budget)
    assert sorted(int(i) for piece in pieces for i in piece) == list(range(len(lengths)))
    for piece in pieces:
        longest = max(lengths[i] for i in piece)
        assert len(piece) == 1 or len(piece) * longest <= budget


def test_chunks_of_like_length_waste_little() -> None:
    random = np.random.default_rng(0)
    queries, passages = random.integers(5, 20, 32), random.integers(40, 128, 32)
    lengths = np.concatenate([queries, passages])
    pieces = cut_chunks(lengths, 2048)
    assert count_padded_tokens(lengths, pieces) <= 1.15 * lengths.sum()
    assert len(pieces) <= 12
    many = random.integers(5, 128, 5000)
    assert count_padded_tokens(many, cut_chunks(many, 2048)) <= 1.03 * many.sum()


def test_cuts_are_the_cheapest() -> None:
    lengths, budget = [9, 9, 8, 3, 3, 3, 2, 1], 32

    def cost(cuts: tuple[int, ...]) -> float:
        edges = [0, *cuts, len(lengths)]
        sizes = [lengths[a] * (b - a) for a, b in pairwise(edges)]
        return sum(sizes) + len(sizes) if max(sizes) <= budget else float("inf")

    every = (c for n in range(8) for c in combinations(range(1, 8), n))
    ends = np.cumsum([len(piece) for piece in cut_chunks(lengths, budget)])[:-1]
    assert cost(tuple(int(e) for e in ends)) == min(map(cost, every))


@pytest.fixture(scope="module")
def shaky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with dropout."""
    folder = tmp_path_factory.mktemp("shaky") / "m"
    tiny.checkpoint(folder)
    config = folder / "config.json"
    text = config.read_text().replace('hidden_dropout_prob": 0.0', 'hidden_dropout_prob": 0.2')
    config.write_text(
        text.replace('attention_probs_dropout_prob": 0.0', 'attention_probs_dropout_prob": 0.1')
    )
    return folder


def _load(folder: Path) -> Encoder:
    return TextEncoder().load(folder, device="cpu", dtype="float32")


def _tokens(encoder: Encoder) -> list[TokenisedText]:
    return encoder.tokenise(TEXTS, prompt="", max_length=None)


def _contrast(encoded: BatchEmbeddings) -> torch.Tensor:
    """A loss in which every text meets every other."""
    first, second = encoded.embeddings[0::2], encoded.embeddings[1::2]
    scores = first @ second.T / 0.1
    loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))
    for values in encoded.layers.values():
        loss = loss + values.square().mean()
    return loss


def _gradients(
    encoder: Encoder, plan: EncodePlan, layers: tuple[float, ...] = ()
) -> tuple[float, dict[str, torch.Tensor]]:
    encoder.module.train(plan.draws_random)
    encoder.module.zero_grad()
    passed = encode_and_backward(encoder, _tokens(encoder), _contrast, plan, seed=5, layers=layers)
    named = encoder.module.named_parameters()
    return float(passed.loss), {n: p.grad.clone() for n, p in named if p.grad is not None}


@pytest.mark.parametrize("kept", [0, 60, 10**6])
@pytest.mark.parametrize("dropout", [False, True])
def test_cached_gradients_are_the_plain_ones_to_the_bit(
    shaky: Path, kept: int, dropout: bool
) -> None:
    encoder = _load(shaky)
    plain = _gradients(encoder, EncodePlan(40, None, draws_random=dropout), (0.5,))
    cached = _gradients(encoder, EncodePlan(40, kept, draws_random=dropout), (0.5,))
    assert cached[0] == plain[0]
    assert cached[1].keys() == plain[1].keys()
    assert all(torch.equal(cached[1][name], plain[1][name]) for name in plain[1])


def test_fewer_chunks_run_twice_the_more_memory_is_free(
    shaky: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = _load(shaky)
    runs = {"n": 0}
    forward = type(encoder).__call__

    def counted(self: Encoder, *args: object) -> object:
        runs["n"] += 1
        return forward(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(type(encoder), "__call__", counted)
    found = {}
    for kept in (None, 10**9, 700_000, 0):
        runs["n"] = 0
        _, gradients = _gradients(encoder, EncodePlan(40, kept_bytes=kept))
        found[kept] = runs["n"], gradients
    count = found[None][0]
    assert found[10**9][0] == count  # all kept: each chunk runs once
    assert count < found[700_000][0] < found[0][0] <= 2 * count
    for _, gradients in found.values():
        assert all(torch.equal(gradients[n], found[None][1][n]) for n in gradients)


def test_dropout_differs_between_chunks_and_seeds(shaky: Path) -> None:
    encoder = _load(shaky)
    encoder.module.train()
    seen: list[torch.Tensor] = []

    def look(encoded: BatchEmbeddings) -> torch.Tensor:
        seen.append(encoded.embeddings.detach().clone())
        return encoded.embeddings.sum()

    twins = encoder.tokenise(["find the file"] * 8, prompt="", max_length=None)
    for seed in (1, 1, 2):
        encode_and_backward(encoder, twins, look, EncodePlan(10), seed=seed)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    assert len({tuple(row.tolist()) for row in seen[0]}) == 8


def test_embeddings_come_in_order_and_equal_texts_are_encoded_once(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = _load(bert)
    told: list[tuple[float, float]] = []
    embedder = TextEmbedder(
        encoder, token_budget=30, progress=lambda done, total, _: told.append((done, total))
    )
    embeddings = embedder.embed([*TEXTS, *TEXTS[::-1]])
    assert embeddings.dtype == np.float32
    assert np.array_equal(embeddings[:24], embeddings[24:][::-1])
    assert told[-1] == (len(set(TEXTS)), len(set(TEXTS)))
    one = np.concatenate([embedder.embed([text]) for text in TEXTS])
    assert_same_pass(embeddings[:24], one, bert)
    assert embedder.embed([]).shape == (0, 32)
    monkeypatch.setattr("emberge.encoding.embedder.ROWS_ON_DEVICE", 5)
    assert np.array_equal(embedder.embed(TEXTS), embeddings[:24])


def test_prompts_and_lengths_change_embeddings(bert: Path) -> None:
    embedder = TextEmbedder(_load(bert))
    plain = embedder.embed(TEXTS)
    assert not np.allclose(plain, embedder.embed(TEXTS, prompt="find: "))
    assert not np.allclose(plain, embedder.embed(TEXTS, max_length=4))
    joined = embedder.embed(["find: " + text for text in TEXTS])
    assert np.array_equal(joined, embedder.embed(TEXTS, prompt="find: "))


# ── states of tokens ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("architecture", ["bert", "qwen3", "modernbert"])
def test_states_of_tokens_are_those_of_each_text_alone(architecture: str, tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "m", architecture)
    encoder, model = _load(folder), AutoModel.from_pretrained(folder)
    encoder.module.eval()
    tokens = encoder.tokenise(TEXTS, prompt="", max_length=None)
    with torch.no_grad():
        states, mask = compute_token_states(encoder, tokens)
        for text, row, is_token in zip(tokens, states, mask.bool(), strict=True):
            alone = model(input_ids=torch.tensor([list(text.ids)]))[0][0]
            assert_same_pass(row[is_token], alone, folder)


def test_a_texts_own_tokens_are_those_between_its_ends(bert: Path) -> None:
    embedder = TextEmbedder(_load(bert))
    texts = [*TEXTS, "list [SEP] file path", ""]
    tokens = embedder.encoder.tokenise(texts, prompt="", max_length=None)
    # [CLS] and [SEP] at the ends, of which an empty text is made; a [SEP] within is the text's own.
    assert [mask.tolist() for mask in embedder.mask_text_tokens(tokens)] == [
        [False, *[True] * (len(text.ids) - 2), False] for text in tokens
    ]


def test_embedding_chunks_leaves_the_model_and_the_callers_mode_as_they_were(shaky: Path) -> None:
    encoder = _load(shaky)
    encoder.module.train()
    embedder = TextEmbedder(encoder)
    tokens = embedder.encoder.tokenise(TEXTS, prompt="", max_length=None)
    first, again = ([rows.clone() for _, rows in embedder.embed_chunks(tokens)] for _ in range(2))
    # Without dropout, which the model has and keeps.
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert encoder.module.training
    for _, _ in embedder.embed_chunks(tokens):
        assert not torch.is_inference_mode_enabled()
        break
