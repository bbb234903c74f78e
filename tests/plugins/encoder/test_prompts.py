"""Prompts that pooling leaves out: which tokens are theirs, and what sentence-transformers makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import Encoder
from emberge.encoding import TextEmbedder
from emberge_encoder.text_encoder import TextEncoder
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from tests.support import tiny
from tests.support.tolerance import assert_same_pass

TEXTS = ["file of names", "Sort a LIST of numbers", "weather", " a", "a " * 300]


def _load(folder: Path, **options: Any) -> Encoder:
    return TextEncoder(**options).load(folder, device="cpu", dtype="float32")


def _saved(encoder: Encoder, folder: Path) -> SentenceTransformer:
    folder.mkdir()
    encoder.save(folder)
    return SentenceTransformer(str(folder), device="cpu")


def _embed(model: SentenceTransformer, prompt: str) -> np.ndarray[Any, Any]:
    return np.asarray(model.encode(TEXTS, prompt=prompt, show_progress_bar=False))


def _byte_level(folder: Path) -> Path:
    """A tiny BERT whose words begin with their space, as those of GPT and Qwen."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tiny.checkpoint(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # As many tokens as the model has embeddings, without most of the bytes.
    few = [c for c in alphabet if c.isascii() or c == "Ġ"]
    trainer = trainers.BpeTrainer(vocab_size=120, initial_alphabet=few, special_tokens=["[PAD]"])
    tokenizer.train_from_iterator(["find: a file of names"] * 9, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")
    fast.model_max_length = 64
    fast.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("mode", ["mean", "weighted_mean"])
@pytest.mark.parametrize("prompt", ["find the ", "Find the: ", "find the fi"])
def test_the_mean_is_of_the_tokens_that_end_after_the_prompt(
    prompt: str, mode: Any, tmp_path: Path
) -> None:
    """Counted anew from the tokenizer's offsets; a special token at the end is not the prompt's."""
    source = tiny.checkpoint(tmp_path / "m", sentence_transformer=False)
    encoder = _load(source, pooling=mode, include_prompt=False, normalize=False)
    tokenizer = AutoTokenizer.from_pretrained(source)
    trunk = AutoModel.from_pretrained(source).eval()
    texts = [*TEXTS, "le of names", ""]
    for text, ours in zip(texts, TextEmbedder(encoder).embed(texts, prompt=prompt), strict=True):
        rows = tokenizer(
            prompt + text, truncation=True, return_offsets_mapping=True, return_tensors="pt"
        )
        ends = rows.pop("offset_mapping")[0, :, 1]
        kept = ends > len(prompt)
        kept[-1] = True
        weights = kept * (torch.arange(1, len(ends) + 1) if mode == "weighted_mean" else 1.0)
        with torch.no_grad():
            states = trunk(**rows)[0][0]
        assert_same_pass(ours, (states * weights[:, None]).sum(0) / weights.sum(), source)


def test_a_token_across_the_prompts_end_is_the_texts(tmp_path: Path) -> None:
    encoder = _load(tiny.checkpoint(tmp_path / "m"))
    (across, beside) = encoder.tokenise(["le", "table"], prompt="find the fi", max_length=None)
    assert (len(across.ids), across.prompt_length) == (5, 3), "[CLS] find the | file [SEP]"
    # [CLS] find the f ##i ##t ##a ... is one word of letters: the first two end inside.
    assert beside.prompt_length == 5
    (byte,) = _load(_byte_level(tmp_path / "b")).tokenise(
        ["file"], prompt="find: ", max_length=None
    )
    assert (len(byte.ids), byte.prompt_length) == (3, 2), "find : | Ġfile"


def test_a_prompt_that_fills_the_length_leaves_the_special_token(tmp_path: Path) -> None:
    encoder = _load(tiny.checkpoint(tmp_path / "m"), include_prompt=False)
    (cut,) = encoder.tokenise(["weather"], prompt="find the file " * 9, max_length=9)
    (empty,) = encoder.tokenise([""], prompt="find the file ", max_length=None)
    assert (len(cut.ids), cut.prompt_length) == (9, 8)
    assert (len(empty.ids), empty.prompt_length) == (5, 4)
    assert np.isfinite(TextEmbedder(encoder).embed(["weather"], prompt="find " * 99)).all()


@pytest.mark.parametrize("pooling", ["mean", "weighted_mean"])
def test_include_prompt_is_saved_and_sentence_transformers_obeys_it(
    pooling: Any, tmp_path: Path
) -> None:
    source = tiny.checkpoint(tmp_path / "m")
    out, within = (_load(source, include_prompt=given, pooling=pooling) for given in (False, True))
    library = _saved(out, tmp_path / "out")
    config = json.loads((tmp_path / "out/1_Pooling/config.json").read_text())
    assert config["include_prompt"] is False
    ours = TextEmbedder(out).embed(TEXTS, prompt="find the ")
    assert_same_pass(ours, _embed(library, "find the "), source)
    assert np.abs(ours - TextEmbedder(within).embed(TEXTS, prompt="find the ")).max() > 1e-3
    # Without a prompt there is nothing to leave out.
    assert_same_pass(TextEmbedder(out).embed(TEXTS), TextEmbedder(within).embed(TEXTS), source)
    # A chunk of training may hold texts with a prompt beside texts without.
    mixed = out.tokenise(TEXTS[:2], prompt="find the ", max_length=None)
    mixed += out.tokenise(TEXTS[:2], prompt="", max_length=None)
    out.module.eval()
    together = out(out.collate(mixed)).embeddings.detach().numpy()
    assert_same_pass(together[:2], ours[:2], source)
    assert_same_pass(together[2:], TextEmbedder(out).embed(TEXTS[:2]), source)
    again = _load(tmp_path / "out", include_prompt=True)
    back = _saved(again, tmp_path / "back")
    assert_same_pass(
        TextEmbedder(again).embed(TEXTS, prompt="find the "), _embed(back, "find the "), source
    )


def test_a_tokenizer_without_offsets_is_counted_as_the_library_does(tmp_path: Path) -> None:
    from transformers import ByT5Tokenizer

    source = tiny.checkpoint(tmp_path / "m", vocab_size=400)
    for path in source.glob("tokenizer*"):
        path.unlink()
    ByT5Tokenizer(model_max_length=64).save_pretrained(source)
    encoder = _load(source, include_prompt=False)
    (text,) = encoder.tokenise(["file"], prompt="find ", max_length=None)
    assert (len(text.ids), text.prompt_length) == (10, 5)
    library = _saved(encoder, tmp_path / "saved")
    ours = TextEmbedder(encoder).embed(TEXTS, prompt="find ")
    assert_same_pass(ours, _embed(library, "find "), source)
