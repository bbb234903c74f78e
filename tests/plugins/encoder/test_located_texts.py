"""Tokens know which characters of which text they came from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emberge import CheckpointError
from emberge_encoder.text.text_model import TextModel
from emberge_encoder.text_encoder import TextEncoder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from tests.support import tiny


def loaded(folder: Path, **options: object) -> TextModel:
    encoder = TextEncoder(pooling="mean", **options).load(folder, device="cpu", dtype="float32")  # type: ignore[arg-type]
    assert isinstance(encoder, TextModel)
    return encoder


def pieces(
    encoder: TextModel, texts: list[str], seconds: list[str] | None = None, **more: object
) -> list[list[str]]:
    """The characters of each token of the texts, a list for each text and then one for each second."""
    given = (texts, seconds or texts)
    return [
        [
            given[side][one.row][a:b]
            for p, a, b in zip(one.text_numbers, one.start, one.end, strict=True)
            if p == side
        ]
        for one in encoder.locate(texts, seconds, **more)  # type: ignore[arg-type]
        for side in ((0, 1) if seconds else (0,))
    ]


def test_tokens_of_texts_and_pairs_are_found(bert: Path) -> None:
    encoder = loaded(bert)
    texts, seconds = ["the bank", "new list"], ["a card", "xyz"]
    assert pieces(encoder, texts) == [["the", "bank"], ["new", "list"]]
    assert pieces(encoder, texts, seconds) == [
        *(["the", "bank"], ["a", "card"]),
        *(["new", "list"], ["x", "y", "z"]),
    ]
    (one,) = encoder.locate(["the bank"])
    assert one.tokens.ids == encoder.tokenise(["the bank"], prompt="", max_length=None)[0].ids


def test_a_pair_has_the_states_that_transformers_gives_it(bert: Path) -> None:
    """BERT embeds the kind of each token of a pair, and other models do not."""
    encoder = loaded(bert)
    pairs = [["the bank", "new list of a row"], ["a card", "xyz"]]
    given = AutoTokenizer.from_pretrained(bert)(
        *map(list, zip(*pairs, strict=True)),
        padding=True,
        return_tensors="pt",
        return_token_type_ids=True,
    )
    assert given["token_type_ids"].any()
    with torch.no_grad():
        expected = AutoModel.from_pretrained(bert)(**given)[0]
        located = encoder.locate(*map(list, zip(*pairs, strict=True)))
        encoder.module.eval()
        found = encoder.states(encoder.collate([one.tokens for one in located]))
    mask = given["attention_mask"].bool()
    assert torch.allclose(found[mask], expected[mask], atol=1e-5)


def test_a_tokenizer_that_puts_nothing_between_texts_gets_a_line_break(tmp_path: Path) -> None:
    """As those of most causal models: bytes, with the space before a word in its token."""
    folder = tiny.checkpoint(tmp_path / "qwen", "qwen3")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=256, special_tokens=["<end>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(["the bank a card"], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<end>", eos_token="<end>")
    encoder = loaded(folder, attention="causal")
    encoder._tokenizer = fast
    (one,) = encoder.locate(["at"], ["to"])
    text = fast.decode(one.tokens.ids)
    assert text == "at\nto"
    assert one.text_numbers == [0, 0, -1, 1, 1]
    assert list(zip(one.start, one.end, strict=True))[3:] == [(0, 1), (1, 2)]


def test_long_passages_become_windows_that_overlap(bert: Path) -> None:
    encoder = loaded(bert)
    passage = " ".join(["the", "bank", "of", "a", "card"] * 8)
    found = encoder.locate(["new list"], [passage], max_length=24, stride=100)
    assert len(found) > 2
    assert all(len(one.tokens.ids) <= 24 for one in found)
    spans = [
        [(a, b) for p, a, b in zip(w.text_numbers, w.start, w.end, strict=True) if p == 1]
        for w in found
    ]
    assert spans[0][-6:] == spans[1][:6], "a quarter of a window"
    assert {span for one in spans for span in one} == {
        (place, place + len(word))
        for place, word in zip(_starts(passage), passage.split(), strict=True)
    }
    long = encoder.locate([passage], ["new list"], max_length=24, stride=4)
    assert [sum(p == 0 for p in one.text_numbers) for one in long] == [12], (
        "half is left for the passage"
    )


def _starts(text: str) -> list[int]:
    place, found = 0, []
    for word in text.split():
        found.append(place)
        place += len(word) + 1
    return found


def test_a_slow_tokenizer_is_refused(bert: Path) -> None:
    class Slow:
        is_fast = False
        name_or_path = "there"

    encoder = loaded(bert)
    encoder._tokenizer = Slow()
    with pytest.raises(CheckpointError, match=r"there: .*tokenizer\.json"):
        encoder.locate(["a"])
