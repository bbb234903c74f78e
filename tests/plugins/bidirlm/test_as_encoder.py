"""A causal language model becomes an encoder: weights as they were, pooling, and a mask token that exists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from emberge import CheckpointError, load_plugins, parse_recipe
from emberge.training import find_prediction_problems
from emberge_encoder import TextEncoder
from emberge_train import MLM
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from tests.support import tiny
from tests.support.as_encoder import encoder, problems
from tests.support.decoders import decoder

MASK = 4  # [MASK]
TEXT = "the list of files, or a vector"


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3 with a head of its own, and a tokenizer that names no mask token."""
    folder = tmp_path_factory.mktemp("causal") / "qwen3"
    decoder(folder, "qwen3", head=True, tie_word_embeddings=False)
    edit(folder, "tokenizer_config.json", mask_token=None)
    return folder


def edit(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    new = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in new.items() if value is not None}))


def assert_refused(folder: Path, fix: str, root: Path, **options: Any) -> None:
    """The mask token is refused by the check and by the run, before anything is written."""
    ((where, message),) = problems(folder, **options)
    assert where == "mask_token"
    assert str(folder) in message
    assert fix in message
    with pytest.raises(CheckpointError, match=fix):
        encoder(folder, root, **options)
    assert not any((root / "out").iterdir())


def test_every_tensor_is_copied_with_the_head(causal: Path, tmp_path: Path) -> None:
    folder, details = encoder(causal, tmp_path)
    before, after = (load_file(f / "model.safetensors") for f in (causal, folder))
    assert "lm_head.weight" in before
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(report.values())
    assert model.config.is_causal is False
    assert (details["attention"], details["pooling"]) == ("bidirectional", "mean")
    assert "mask_token" not in details


@pytest.mark.parametrize("given", ["[MASK]", MASK])
def test_the_tokenizer_carries_an_existing_mask_token(
    given: str | int, causal: Path, tmp_path: Path
) -> None:
    assert AutoTokenizer.from_pretrained(causal).mask_token is None
    folder, details = encoder(causal, tmp_path, mask_token=given)
    before, after = (AutoTokenizer.from_pretrained(f) for f in (causal, folder))
    assert (after.mask_token, after.mask_token_id) == ("[MASK]", MASK)
    assert (details["mask_token"], details["mask_id"]) == ("[MASK]", MASK)
    assert after.get_vocab() == before.get_vocab()
    assert after(TEXT).input_ids == before(TEXT).input_ids
    # Losses over tokens take it from there.
    backbone = TextEncoder()
    assert not list(find_prediction_problems([MLM()], backbone, folder))
    loaded: Any = backbone.load(folder, device="cpu", dtype="float32", predicts_tokens=True)
    assert loaded.mask_id == MASK
    # A word of the vocabulary can be one too.
    folder, details = encoder(causal, tmp_path / "word", mask_token="vector")
    after = AutoTokenizer.from_pretrained(folder)
    assert after.mask_token_id == details["mask_id"]
    assert len(after) == len(before)


def test_a_mask_token_that_is_not_there_is_refused(causal: Path, tmp_path: Path) -> None:
    assert_refused(causal, "has no token '<mask>'", tmp_path / "a", mask_token="<mask>")
    assert_refused(causal, "has no token with the id 5000", tmp_path / "b", mask_token=5000)


def test_a_mask_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    """As where a tokenizer's config names one that is new to it, and gets an id without a row."""
    source = decoder(tmp_path / "m", "qwen3")
    edit(source, "tokenizer_config.json", mask_token="<mask>")
    rows = json.loads((source / "config.json").read_text())["vocab_size"]
    assert AutoTokenizer.from_pretrained(source).mask_token_id == rows
    assert_refused(source, f"embeddings of {rows} tokens only", tmp_path / "a")
    assert_refused(source, f"embeddings of {rows} tokens only", tmp_path / "b", mask_token=rows)
    assert encoder(source, tmp_path / "c", mask_token=MASK)[1]["mask_id"] == MASK


def test_the_modules_are_written_for_bare_and_whole_folders(tmp_path: Path) -> None:
    whole = tiny.checkpoint(tmp_path / "whole", "qwen3")
    bare = tiny.checkpoint(tmp_path / "bare", "qwen3", sentence_transformer=False)
    for source in (whole, bare):
        folder, _ = encoder(source, tmp_path / f"of {source.name}")
        model = SentenceTransformer(str(folder), device="cpu")
        assert [type(module).__name__ for module in model] == [
            "Transformer",
            "Pooling",
            "Normalize",
        ]
        assert model[1].get_config_dict()["pooling_mode"] == "mean"
        assert TextEncoder().describe(folder).problems == ()


def test_a_model_that_is_an_encoder_already_is_refused(bert: Path) -> None:
    ((where, message),) = problems(bert)
    assert where == "model"
    assert "'bert' is no causal language model" in message


def test_the_check_names_a_tokenizer_without_a_mask_token(causal: Path) -> None:
    ((where, message),) = problems(causal)
    assert where == "model"
    assert "as_encoder: {mask_token: …}" in message
    assert problems(causal, mask_token="[MASK]") == []
    text = f"steps: {{encoder: {{as_encoder: {{model: {causal}, mask_token: {MASK}}}}}}}"
    (step,) = parse_recipe(text, load_plugins(block=())).steps
    assert step.step.mask_token == MASK  # type: ignore[attr-defined]
