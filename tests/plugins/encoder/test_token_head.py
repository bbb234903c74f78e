"""The head of a language model: found, trained, and saved where transformers looks for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from emberge import Backbone, CheckpointError, TokenLoss
from emberge.contracts import TokenPredictor
from emberge.training import find_prediction_problems
from emberge_encoder.text.lora import Lora
from emberge_encoder.text_encoder import TextEncoder
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from tests.support import tiny
from tests.support.json_files import changing
from tests.support.tolerance import assert_same_pass

MASKED, CAUSAL = "AutoModelForMaskedLM", "AutoModelForCausalLM"
HEADS = {"bert": MASKED, "xlm-roberta": MASKED, "modernbert": MASKED, "qwen3": CAUSAL}


@dataclass(frozen=True, kw_only=True)
class Asking(TokenLoss):
    """A loss over tokens with these needs."""

    causal: bool = False


def problems_of(backbone: Backbone, folder: Path, **needs: bool) -> list[str]:
    return list(find_prediction_problems([Asking(**needs)], backbone, folder))


def _load(folder: Path, **options: Any) -> Any:
    backbone = TextEncoder(pooling="mean", **options)
    assert not backbone.describe(folder).problems
    return backbone.load(folder, device="cpu", dtype="float32", predicts_tokens=True)


def _bidirectional(architecture: str) -> dict[str, Any]:
    return {"attention": "bidirectional"} if architecture == "qwen3" else {}


@pytest.mark.parametrize("architecture", HEADS)
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_transformers(architecture: str, tied: bool, tmp_path: Path) -> None:
    loader = HEADS[architecture]
    folder = tiny.transformer(tmp_path / "m", loader, architecture, tie_word_embeddings=tied)
    encoder = _load(folder, **_bidirectional(architecture))
    assert isinstance(encoder, TokenPredictor)
    encoder.module.eval()
    batch = encoder.collate(
        encoder.tokenise(["a list", "the name of a file"], prompt="", max_length=None)
    )
    with torch.no_grad():
        found = encoder.logits(encoder.states(batch))
        config = transformers.AutoConfig.from_pretrained(folder)
        if architecture == "qwen3":
            config.is_causal = False
        model = getattr(transformers, loader).from_pretrained(folder, config=config).eval()
        expected = model(**batch).logits
    there = batch["attention_mask"].bool()
    assert_same_pass(found[there], expected[there], folder)


@pytest.mark.parametrize("architecture", HEADS)
@pytest.mark.parametrize("tied", [True, False])
def test_a_changed_head_is_reloaded(architecture: str, tied: bool, tmp_path: Path) -> None:
    loader = HEADS[architecture]
    source = tiny.transformer(tmp_path / "m", loader, architecture, tie_word_embeddings=tied)
    encoder = _load(source, **_bidirectional(architecture))
    with torch.no_grad():
        for value in encoder.module.parameters():
            value.add_(torch.randn_like(value))
    encoder.save(tmp_path / "out")
    assert (
        load_file(tmp_path / "out/model.safetensors").keys()
        == load_file(source / "model.safetensors").keys()
    )
    model, report = getattr(transformers, loader).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report.values())
    ids = torch.arange(5, 25)[None]
    encoder.module.eval()
    with torch.no_grad():
        found = model.eval()(input_ids=ids).logits
        expected = encoder.logits(encoder.states({"input_ids": ids}))
    assert_same_pass(found, expected, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == [
        type(model).__name__
    ]
    embedded = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(["a list"])
    tokens = encoder.tokenise(["a list"], prompt="", max_length=None)
    with torch.no_grad():
        own = encoder(encoder.collate(tokens)).embeddings
    assert_same_pass(embedded, own, tmp_path / "out")


def test_a_copy_of_tied_weights_in_the_source_is_renewed(tmp_path: Path) -> None:
    """Otherwise the two would differ, and transformers would untie them."""
    source = tiny.transformer(tmp_path / "m", MASKED)
    tensors = load_file(source / "model.safetensors")
    words = "bert.embeddings.word_embeddings.weight"
    save_file(
        {**tensors, "cls.predictions.decoder.weight": tensors[words].clone()},
        source / "model.safetensors",
        {"format": "pt"},
    )
    encoder = _load(source)
    with torch.no_grad():
        encoder.module.trunk.embeddings.word_embeddings.weight.add_(1)
    encoder.save(tmp_path / "out")
    found = load_file(tmp_path / "out/model.safetensors")
    assert torch.equal(found["cls.predictions.decoder.weight"], found[words])
    assert not torch.equal(found[words], tensors[words])


def test_a_new_head_is_drawn_alike_and_announced(bert: Path, tmp_path: Path) -> None:
    backbone = TextEncoder(fresh_head=True)
    assert problems_of(backbone, bert) == []
    first, second = (
        backbone.load(bert, device="cpu", dtype="float32", predicts_tokens=True) for _ in range(2)
    )
    for one, other in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(one, other)
    first.save(tmp_path / "out")
    _, report = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert problems_of(TextEncoder(), tmp_path / "out") == []


def test_a_head_alone_is_trained_if_every_part_is_frozen(bert: Path, tmp_path: Path) -> None:
    backbone = TextEncoder(fresh_head=True, freeze=("embeddings", "encoder"))
    encoder = backbone.load(bert, device="cpu", dtype="float32", predicts_tokens=True)
    trained = [name for name, p in encoder.module.named_parameters() if p.requires_grad]
    assert trained
    assert all(name.startswith("head.") for name in trained)
    encoder.save(tmp_path / "out")
    before, after = (load_file(path / "model.safetensors") for path in (bert, tmp_path / "out"))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_tied_embeddings_are_a_head_by_themselves(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "m", "qwen3", tie_word_embeddings=True)
    backbone = TextEncoder(attention="bidirectional")
    assert problems_of(backbone, folder) == []
    encoder: Any = backbone.load(folder, device="cpu", dtype="float32", predicts_tokens=True)
    words = encoder.module.trunk.embed_tokens.weight
    states = torch.randn(3, 32)
    assert torch.equal(encoder.logits(states), states @ words.T)


@pytest.mark.parametrize(("architecture", "tied"), [("bert", True), ("qwen3", False)])
def test_a_missing_head_is_named_with_what_to_do(
    architecture: str, tied: bool, tmp_path: Path
) -> None:
    folder = tiny.checkpoint(tmp_path / "m", architecture, tie_word_embeddings=tied)
    backbone = TextEncoder()
    with pytest.raises(CheckpointError, match=rf"{folder}.*fresh_head: true"):
        backbone.load(folder, device="cpu", dtype="float32", predicts_tokens=True)


def test_special_tokens_are_spared(tmp_path: Path) -> None:
    encoder = _load(tiny.transformer(tmp_path / "m", MASKED))
    (text,) = encoder.tokenise(["a [MASK] list"], prompt="", max_length=None)
    ids = np.asarray(text.ids)
    assert encoder.special(ids).tolist() == [True, False, True, False, True]
    assert ids[2] == encoder.mask_id
    assert encoder.vocabulary == len(encoder._tokenizer)


def _without_mask(folder: Path) -> Path:
    with changing(folder / "tokenizer_config.json") as config:
        del config["mask_token"]
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    return folder


def test_a_tokenizer_without_a_mask_is_a_problem(tmp_path: Path) -> None:
    folder = _without_mask(tiny.transformer(tmp_path / "m", MASKED))
    (problem,) = problems_of(TextEncoder(pooling="mean"), folder)
    assert str(folder) in problem
    assert "as_encoder: {mask_token: …}" in problem


def test_a_loss_that_hides_nothing_needs_no_mask(tmp_path: Path) -> None:
    folder = _without_mask(tiny.transformer(tmp_path / "m", "AutoModelForCausalLM", "qwen3"))
    assert problems_of(TextEncoder(), folder, causal=True) == []
    encoder: Any = TextEncoder().load(folder, device="cpu", dtype="float32", predicts_tokens=True)
    assert encoder.mask_id is None
    assert encoder.special(np.asarray([0, 40])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("architecture", "attention", "causal", "fix"),
    [
        ("qwen3", "as is", False, "attention: bidirectional"),
        ("qwen3", "bidirectional", True, "attention: causal"),
        ("bert", "as is", True, "mntp or mlm"),
    ],
)
def test_a_loss_for_other_attention_is_refused(
    architecture: str, attention: Any, causal: bool, fix: str, tmp_path: Path
) -> None:
    cls = "AutoModelForCausalLM" if architecture == "qwen3" else MASKED
    folder = tiny.transformer(tmp_path / "m", cls, architecture)
    backbone = TextEncoder(pooling="mean", attention=attention)
    if architecture == "qwen3" and attention == "as is":
        backbone = TextEncoder()
    assert problems_of(backbone, folder, causal=not causal) == []
    (problem,) = problems_of(backbone, folder, causal=causal)
    assert str(folder) in problem
    assert fix in problem


def test_what_cannot_predict_is_refused(tmp_path: Path) -> None:
    """A mask without a row of the embeddings, an adapter, and logits that are more than the head's."""
    folder = tiny.transformer(tmp_path / "m", MASKED)
    folded = TextEncoder(pooling="mean", lora=Lora(fold=True))
    assert "leave it out" in problems_of(folded, folder)[0]
    with pytest.raises(CheckpointError, match="leave it out"):
        folded.load(folder, device="cpu", dtype="float32", predicts_tokens=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"mask_token": "<hide>"})
    tokenizer.save_pretrained(folder)
    with pytest.raises(CheckpointError, match="<hide>"):
        _load(folder)
    capped = tiny.transformer(tmp_path / "c", CAUSAL, "gemma3", final_logit_softcapping=30.0)
    with pytest.raises(CheckpointError, match="by more than its head"):
        _load(capped, attention="bidirectional")


def test_all_weights_have_names_on_disk(tmp_path: Path) -> None:
    folder = tiny.transformer(tmp_path / "m", MASKED, "xlm-roberta", tie_word_embeddings=False)
    encoder = _load(folder)
    names = encoder.stored_names()
    assert names.keys() == {name for name, _ in encoder.module.named_parameters()}
    stored = load_file(folder / "model.safetensors")
    assert {name for name in names.values() if name.startswith("lm_head.")} <= stored.keys()
