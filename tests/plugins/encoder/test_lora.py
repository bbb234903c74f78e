"""Adapters: what they train, what they save, and what peft makes of them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from emberge import CheckpointError, Encoder
from emberge.contracts import from_json
from emberge.encoding import TextEmbedder
from emberge.merging import MergeInput
from emberge_encoder.text.lora import Lora
from emberge_encoder.text_encoder import TextEncoder
from emberge_merge import Passthrough
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoModel

from tests.support import tiny
from tests.support.merges import merge_models
from tests.support.peft_adapters import adapted
from tests.support.tolerance import assert_same_pass

TEXTS = ["find a file", "Sort a LIST of numbers", "weather", "the table of the bank"]
KINDS: dict[str, Lora] = {"plain": Lora(rank=2), "scaled": Lora(rank=3, alpha=7)}


def _load(backbone: TextEncoder, folder: Path) -> Encoder:
    return backbone.load(folder, device="cpu", dtype="float32")


def _trained(lora: Lora, folder: Path) -> Encoder:
    """An encoder whose factors have moved from where they start."""
    encoder = _load(TextEncoder(lora=lora), folder)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in encoder.module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return encoder


def _embedded(encoder: Encoder) -> Any:
    return TextEmbedder(encoder).embed(TEXTS)


def _plain(folder: Path) -> Any:
    return SentenceTransformer(str(folder), device="cpu").encode(TEXTS, show_progress_bar=False)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_what_was_trained(kind: str, bert: Path, tmp_path: Path) -> None:
    """By peft, by a merge of base and adapter, and folded: the encoder's own embeddings."""
    encoder = _trained(KINDS[kind], bert)
    ours = _embedded(encoder)
    assert np.abs(ours - _embedded(_load(TextEncoder(), bert))).max() > 1e-3
    encoder.save(tmp_path / "adapter")
    peft = adapted(bert, tmp_path / "adapter").base_model.model
    trunk: Any = encoder.module.get_submodule("trunk")
    ids = torch.tensor([[2, 6, 7, 8, 3]])
    with torch.no_grad():
        assert_same_pass(trunk.eval()(ids)[0], peft(ids)[0], bert)
    one = [MergeInput("one", bert, adapter=tmp_path / "adapter")]
    merge_models(one, strategy=[Passthrough()], out=tmp_path / "merged")
    assert_same_pass(_plain(tmp_path / "merged"), ours, bert)


def test_folded_it_is_a_whole_model(bert: Path, tmp_path: Path) -> None:
    lora = Lora(rank=2, fold=True)
    encoder = _trained(lora, bert)
    before = _embedded(encoder)
    (tmp_path / "whole").mkdir()
    encoder.save(tmp_path / "whole")
    assert_same_pass(_plain(tmp_path / "whole"), before, bert)
    assert np.array_equal(_embedded(encoder), before), "saving must not touch what is trained"
    own, source = (load_file(f / "model.safetensors") for f in (tmp_path / "whole", bert))
    assert set(own) == set(source)
    assert not TextEncoder(lora=lora).leaves_adapter


def test_only_factors_are_trained_and_they_begin_as_nothing(bert: Path) -> None:
    encoder = _load(TextEncoder(lora=Lora(rank=2)), bert)
    moved = {n for n, p in encoder.module.named_parameters() if p.requires_grad}
    assert moved
    assert all(".lora_" in name for name in moved)
    linear = [m for m in _load(TextEncoder(), bert).module.modules() if isinstance(m, nn.Linear)]
    assert len(moved) == 2 * len(linear)
    assert_same_pass(_embedded(encoder), _embedded(_load(TextEncoder(), bert)), bert)


def test_a_vision_tower_as_deep_as_the_text_is_left_alone(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m", "qwen3-vl")
    encoder = _load(TextEncoder(lora=Lora(rank=2)), source)
    moved = {n for n, p in encoder.module.named_parameters() if p.requires_grad}
    assert {n.partition(".layers.")[0] for n in moved} == {"trunk.language_model"}
    assert len(moved) == 2 * 7 * 3, "factors of q, k, v, o, gate, up and down in each layer"


def test_an_adapter_has_the_same_bytes_whenever_it_is_saved(bert: Path, tmp_path: Path) -> None:
    encoder = _trained(Lora(rank=2), bert)
    for number in range(3):
        encoder.save(tmp_path / str(number))
    saved = {path.read_bytes() for path in tmp_path.glob("*/adapter_model.safetensors")}
    assert len(saved) == 1
    model = AutoModel.from_pretrained(bert)
    model.load_adapter(str(tmp_path / "0"))  # type: ignore[no-untyped-call]
    stored = load_file(tmp_path / "0/adapter_model.safetensors")
    loaded = {n: p for n, p in model.named_parameters() if ".lora_A." in n}
    assert len(loaded) == len(stored) // 2 > 0


def test_an_adapter_says_what_it_lies_on(bert: Path, berts: list[Path], tmp_path: Path) -> None:
    encoder = _trained(Lora(rank=2), bert)
    encoder.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (2, 2, 0.0)
    assert config["base_model_name_or_path"] == bert.name
    assert any(name.endswith(".query") for name in config["target_modules"])
    other = [MergeInput("one", berts[0], adapter=tmp_path)]
    with pytest.raises(CheckpointError, match="whose weights differ"):
        merge_models(other, strategy=[Passthrough()], out=tmp_path / "merged")


@pytest.mark.parametrize(
    ("options", "bare"),
    [({"pooling": "cls"}, False), ({"pooling": "mean"}, True), ({"include_prompt": False}, False)],
)
def test_what_an_adapter_cannot_hold_is_refused_before_training(
    options: dict[str, Any], bare: bool, tmp_path: Path
) -> None:
    folder = tiny.checkpoint(tmp_path / "m", sentence_transformer=not bare)
    (fault,) = TextEncoder(lora=Lora(), **options).describe(folder).problems
    assert f"its {next(iter(options))} would be lost" in fault
    assert "fold: true" in fault
    assert not TextEncoder(lora=Lora(fold=True), **options).describe(folder).problems


def test_the_documented_example_is_not_refused(bert: Path) -> None:
    example = inspect.cleandoc(TextEncoder.__doc__ or "").partition("Example:\n")[2]
    options = yaml.safe_load(example)["backbone"]["text_encoder"]
    assert not from_json(TextEncoder, options | {"max_length": 16}).describe(bert).problems
