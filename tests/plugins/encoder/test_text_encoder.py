from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import CheckpointError, Encoder
from emberge.encoding import TextEmbedder
from emberge.testing import check_backbone
from emberge_encoder.text_encoder import TextEncoder
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel

from tests.support import tiny
from tests.support.json_files import changing, edit
from tests.support.laws import find_broken_law
from tests.support.tolerance import assert_same_pass

TEXTS = ["how to read a file", "Sort a LIST of numbers", "weather", "", "a " * 300]


def _load(backbone: TextEncoder, folder: Path) -> Encoder:
    return backbone.load(folder, device="cpu", dtype="float32")


def _saved(encoder: Encoder, folder: Path) -> Path:
    folder.mkdir(parents=True)
    encoder.save(folder)
    return folder


def _names(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= set(file.keys())
    return found


def assert_agreement(backbone: TextEncoder, source: Path, target: Path) -> Path:
    """Our encoder, plain SentenceTransformer on what it saves, and our encoder on that: all the same."""
    encoder = _load(backbone, source)
    ours = TextEmbedder(encoder).embed(TEXTS)
    assert backbone.describe(source).dimension == encoder.dimension == ours.shape[1]
    saved = _saved(encoder, target)
    plain = SentenceTransformer(str(saved), device="cpu").encode(TEXTS, show_progress_bar=False)
    assert_same_pass(ours, plain, source)
    again = TextEmbedder(_load(TextEncoder(), saved)).embed(TEXTS)
    assert_same_pass(again, ours, source)
    assert _names(source) == _names(saved)
    return saved


def test_minilm_is_what_sentence_transformers_makes_of_it(minilm: Path, tmp_path: Path) -> None:
    plain = SentenceTransformer(str(minilm), device="cpu").encode(TEXTS, show_progress_bar=False)
    assert_same_pass(TextEmbedder(_load(TextEncoder(), minilm)).embed(TEXTS), plain, minilm)
    saved = assert_agreement(TextEncoder(), minilm, tmp_path / "saved")
    types = [m["type"] for m in json.loads((saved / "modules.json").read_text())]
    assert types == [
        f"sentence_transformers.models.{k}" for k in ("Transformer", "Pooling", "Normalize")
    ]
    before, after = (load_file(f / "model.safetensors") for f in (minilm, saved))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (saved / "vocab.txt").read_bytes() == (minilm / "vocab.txt").read_bytes()


BARE = (
    ("bert", TextEncoder(pooling="cls")),
    ("bert", TextEncoder(pooling="mean", normalize=False, max_length=7)),
    ("qwen3", TextEncoder()),
    ("qwen3", TextEncoder(pooling="weighted_mean")),
    ("qwen3", TextEncoder(pooling="mean", attention="bidirectional")),
    ("gemma3", TextEncoder(pooling="mean", attention="bidirectional")),
    ("qwen3", TextEncoder(pooling="mean", attention="causal")),
)
WHOLE = ("bert", "xlm-roberta", "modernbert", "qwen3", "gemma3")


@pytest.mark.parametrize(
    ("architecture", "backbone", "whole"),
    [*((a, TextEncoder(), True) for a in WHOLE), *((a, one, False) for a, one in BARE)],
)
def test_a_folder_is_read_as_it_says_and_a_bare_one_becomes_whole(
    architecture: str, backbone: TextEncoder, whole: bool, tmp_path: Path
) -> None:
    source = tiny.checkpoint(tmp_path / "m", architecture, sentence_transformer=whole)
    saved = assert_agreement(backbone, source, tmp_path / "saved")
    AutoModel.from_pretrained(saved)
    modules = [m["type"].split(".")[-1] for m in json.loads((saved / "modules.json").read_text())]
    normalised = whole or backbone.normalize is None
    assert modules == ["Transformer", "Pooling", *["Normalize"] * normalised]


def test_an_encoder_saved_without_its_decoder_is_read(tmp_path: Path) -> None:
    from transformers import T5Config, T5EncoderModel

    source = tmp_path / "m"
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=tiny.write_tokenizer(source), **sizes)
    T5EncoderModel(config).save_pretrained(source)
    assert "is_encoder_decoder" in json.loads((source / "config.json").read_text())
    assert_agreement(TextEncoder(pooling="mean"), source, tmp_path / "saved")


@pytest.mark.parametrize("pooling", [None, "mean", "cls", "last", "weighted_mean"])
def test_every_pooling_keeps_the_laws(pooling: Any, bert: Path, tmp_path: Path) -> None:
    assert find_broken_law(check_backbone, TextEncoder(pooling=pooling), bert) == ""
    if pooling is None:
        causal = tiny.checkpoint(tmp_path / "m", "qwen3")
        assert find_broken_law(check_backbone, TextEncoder(), causal) == ""


@pytest.mark.parametrize("own", [True, False])
def test_mean_pooling_over_causal_attention_is_refused_unless_it_is_meant(
    own: bool, tmp_path: Path
) -> None:
    source = tiny.checkpoint(tmp_path / "m", "qwen3")
    if own:
        tiny.write_modules(source, 32, pooling="mean")
    given: dict[str, Any] = {} if own else {"pooling": "mean"}
    (problem,) = TextEncoder(**given).describe(source).problems
    assert str(source) in problem
    assert "attention: bidirectional, or pooling: last (or attention: causal" in problem
    meant = TextEncoder(attention="causal", **given)
    saved = _saved(_load(meant, source), tmp_path / "saved")
    assert TextEncoder().describe(saved).problems == ()
    _load(TextEncoder(), saved)
    for backbone in (TextEncoder(pooling="last"), TextEncoder(attention="bidirectional")):
        assert not backbone.describe(source).problems


def test_mean_pooling_over_a_class_that_its_layers_alone_show_to_be_causal_is_refused(
    tmp_path: Path,
) -> None:
    source = tmp_path / "clip"
    size = tiny.write_tokenizer(source)
    config = AutoConfig.for_model(
        "clip_text_model",
        **{"vocab_size": size, "hidden_size": 32, "intermediate_size": 64, "eos_token_id": 3},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64},
    )
    AutoModel.from_config(config).save_pretrained(source)
    backbone = TextEncoder(pooling="mean")
    assert not backbone.describe(source).problems
    with pytest.raises(CheckpointError, match=r"its attention is causal.* pooling: last") as caught:
        _load(backbone, source)
    assert str(source) in str(caught.value)
    _load(TextEncoder(pooling="last"), source)


def test_tensors_beyond_the_trunk_are_carried_over(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m")
    tensors = {f"bert.{name}": t for name, t in load_file(source / "model.safetensors").items()}
    tensors["cls.predictions.bias"] = torch.ones(3)
    tensors["bert.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    assert_agreement(TextEncoder(), source, tmp_path / "saved")


@pytest.mark.parametrize("pooling", ["cls", "mean", "last", "weighted_mean"])
def test_texts_have_the_vectors_that_they_have_alone_where_the_tokenizer_pads_on_the_left(
    pooling: Any, tmp_path: Path
) -> None:
    source = tiny.checkpoint(tmp_path / "m")
    edit(source, "tokenizer_config.json", padding_side="left")
    encoder = _load(TextEncoder(pooling=pooling), source)
    together = TextEmbedder(encoder).embed(TEXTS)
    stock = SentenceTransformer(str(_saved(encoder, tmp_path / "saved")), device="cpu")
    alone = stock.encode(TEXTS, batch_size=1, show_progress_bar=False)
    assert_same_pass(together, alone, source)


def test_xlm_roberta_reads_as_many_tokens_as_it_has_positions(tmp_path: Path) -> None:
    source = tiny.checkpoint(
        tmp_path / "m", "xlm-roberta", max_position_embeddings=34, pad_token_id=1
    )
    encoder = _load(TextEncoder(), source)
    (long,) = encoder.tokenise(["a " * 300], prompt="", max_length=None)
    assert len(long.ids) == 32
    assert np.isfinite(TextEmbedder(encoder).embed(["a " * 300])).all()
    with pytest.raises(CheckpointError, match="at most 32"):  # no option of the recipe was checked
        TextEmbedder(encoder).embed(["a " * 300], max_length=33)
    (problem,) = TextEncoder(max_length=33).describe(source).problems
    assert "at most 32" in problem


@pytest.mark.parametrize("architecture", ["bert", "qwen3", "qwen3-vl"])
def test_intermediate_layers_are_pooled_hidden_states(architecture: str, tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m", architecture)
    encoder = _load(TextEncoder(), source)
    encoder.module.eval()
    tokens = encoder.tokenise(["find the file", "open a list"], prompt="", max_length=None)
    features = encoder.collate(tokens)
    with torch.no_grad():
        found = encoder(features, (0.0, 0.5, 1.0))
        plain = AutoModel.from_pretrained(source).eval()
        states = plain(**features, output_hidden_states=True).hidden_states
    assert len(states) == 4
    for layer, index in ((0.0, 0), (0.5, 2), (1.0, 3)):
        pooled = states[index].mean(1) if architecture == "bert" else states[index][:, -1]
        assert_same_pass(found.layers[layer], pooled, source)


def test_what_configs_show_is_checked_without_weights(tmp_path: Path) -> None:
    def problem(backbone: TextEncoder, folder: Path) -> str:
        (found,) = backbone.describe(folder).problems
        with pytest.raises(CheckpointError):
            _load(backbone, folder)
        return found

    bare = tiny.checkpoint(tmp_path / "bare", sentence_transformer=False)
    causal = tiny.checkpoint(tmp_path / "causal", "qwen3", sentence_transformer=False)
    for path in (*bare.glob("*.safetensors"), *causal.glob("*.safetensors")):
        path.unlink()
    assert "no modules.json" in problem(TextEncoder(), bare)
    assert "attention: bidirectional, or pooling: last" in problem(
        TextEncoder(pooling="mean"), causal
    )
    assert TextEncoder().describe(causal).problems == ()
    edit(bare, "config.json", model_type="strange", auto_map={"AutoModel": "code.py"})
    assert "not run" in problem(TextEncoder(pooling="cls"), bare)
    assert "neither modules.json nor config.json" in problem(TextEncoder(), tmp_path)
    whole = tiny.checkpoint(tmp_path / "whole")
    modules = json.loads((whole / "modules.json").read_text())
    (whole / "modules.json").write_text(json.dumps([{**modules[0], "type": "code.Mine"}]))
    assert "'code.Mine' needs remote code" in problem(TextEncoder(), whole)
    (whole / "modules.json").write_text("[")
    assert "modules.json" in problem(TextEncoder(), whole)


def test_attention_and_pooling_of_another_kind_are_not_native(tmp_path: Path) -> None:
    encoder, decoder = tiny.checkpoint(tmp_path / "b"), tiny.checkpoint(tmp_path / "q", "qwen3")
    both = TextEncoder(attention="bidirectional", pooling="mean")
    assert both.describe(encoder).changes == TextEncoder().describe(decoder).changes == ()
    attention, pooling = both.describe(decoder).changes
    assert attention == "attention: bidirectional; the model's own is causal"
    assert pooling == "pooling: mean; the model's own is last"
    bare = tiny.checkpoint(tmp_path / "bare", "qwen3", sentence_transformer=False)
    assert both.describe(bare).changes == (attention,), "a bare folder has no pooling of its own"


def test_missing_left_over_and_pickled_weights_are_refused(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m")
    path = source / "model.safetensors"
    tensors = load_file(path)
    name = "encoder.layer.1.output.dense.weight"

    def refused(changed: dict[str, torch.Tensor], message: str) -> None:
        save_file(changed, path, metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=message) as caught:
            _load(TextEncoder(), source)
        assert "\n" not in str(caught.value)

    refused({k: v for k, v in tensors.items() if k != name}, f"lacks {name};")
    refused(
        tensors | {"encoder.layer.9.output.dense.weight": tensors[name].clone()},
        r"has encoder\.layer\.9\.output\.dense\.weight, which",
    )
    refused(
        tensors | {name: torch.zeros(2, 2)}, rf"'{name}' has the shape \[2, 2\], and by .* has \["
    )
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        _load(TextEncoder(), source)
    path.unlink()
    (source / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pickle.*emberge safetensors"):
        _load(TextEncoder(), source)


def test_a_missing_pooler_is_no_loss(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m")
    path = source / "model.safetensors"
    tensors = {k: v for k, v in load_file(path).items() if not k.startswith("pooler")}
    save_file(tensors, path, metadata={"format": "pt"})
    encoder = _load(TextEncoder(), source)
    assert not any("pooler" in name for name, _ in encoder.module.named_parameters())
    assert _names(_saved(encoder, tmp_path / "saved")) == set(tensors)


def test_a_half_precision_checkpoint_is_trained_and_saved_whole(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m", "qwen3", dtype="bfloat16")
    saved = assert_agreement(TextEncoder(), source, tmp_path / "saved")
    assert AutoModel.from_pretrained(saved).dtype == torch.float32


def test_fingerprints_of_tokenizers_are_shared_by_models_and_not_by_lengths(
    berts: list[Path], bert: Path, tmp_path: Path
) -> None:
    first, second = (_load(TextEncoder(), path).tokenizer_fingerprint for path in berts[:2])
    assert first == second
    assert first != _load(TextEncoder(max_length=9), bert).tokenizer_fingerprint
    other = tmp_path / "other"
    shutil.copytree(bert, other)
    with changing(other / "tokenizer.json") as tokenizer:
        tokenizer["normalizer"]["lowercase"] = False
    assert first != _load(TextEncoder(), other).tokenizer_fingerprint
