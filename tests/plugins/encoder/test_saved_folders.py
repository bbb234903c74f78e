"""What a training leaves is read alike by sentence-transformers and by emberge, as what it began from was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import CheckpointError
from emberge.cli.main import main
from emberge.engine import TextEmbedder
from emberge_encoder.text_encoder import TextEncoder
from sentence_transformers import SentenceTransformer

from tests.support import tiny

TEXTS = ["how to read a file", "Sort a LIST of numbers", "weather", "a " * 300]
TEMPLATE = "{% for m in messages %}{{ m['role'] }} the {{ m['content'] }} file {% endfor %}"


def _edit(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _by_library(folder: Path, **options: Any) -> np.ndarray[Any, Any]:
    model = SentenceTransformer(str(folder), device="cpu")
    return np.asarray(model.encode(TEXTS, show_progress_bar=False, **options))


def _trained(backbone: TextEncoder, source: Path, target: Path) -> np.ndarray[Any, Any]:
    """Change every weight, save, and return the embeddings of the encoder that was saved."""
    encoder = backbone.load(source, device="cpu", dtype="float32")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in encoder.module.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    target.mkdir()
    encoder.save(target)
    return TextEmbedder(encoder).embed(TEXTS)


def _classic(folder: Path) -> Path:
    return tiny.checkpoint(folder)


def _new(folder: Path) -> Path:
    """As the newest release saves a model with prompts."""
    plain = tiny.checkpoint(folder.with_name("plain"))
    model = SentenceTransformer(str(plain), device="cpu", prompts={"query": "find: "})
    model.save_pretrained(str(folder))
    assert "modality_config" in (folder / "sentence_bert_config.json").read_text()
    return folder


def _only_new(folder: Path) -> Path:
    """With a module that no older release has."""
    from sentence_transformers.sentence_transformer import modules

    plain = tiny.checkpoint(folder.with_name("plain"), sentence_transformer=False)
    torch.manual_seed(0)
    chain = [
        modules.Transformer(str(plain)),
        modules.Pooling(32),
        modules.Dense(32, 32, use_residual=True),
        modules.Normalize(),
    ]
    SentenceTransformer(modules=chain, device="cpu").save_pretrained(str(folder))
    return folder


def _in_subfolder(folder: Path) -> Path:
    """With the transformer in a folder of its own, as long ago."""
    source = tiny.checkpoint(folder)
    trunk = source / "0_Transformer"
    trunk.mkdir()
    modules = json.loads((source / "modules.json").read_text())
    names = ("modules.json", "config_sentence_transformers.json")
    for path in [p for p in source.iterdir() if p.is_file() and p.name not in names]:
        path.rename(trunk / path.name)
    modules[0]["path"] = "0_Transformer"
    (source / "modules.json").write_text(json.dumps(modules))
    return source


KINDS = [_classic, _new, _only_new, _in_subfolder]


@pytest.mark.parametrize("kind", KINDS)
def test_both_libraries_agree_before_and_after_a_training(
    kind: Callable[[Path], Path], tmp_path: Path
) -> None:
    source = kind(tmp_path / "m")
    before = TextEmbedder(TextEncoder().load(source, device="cpu", dtype="float32")).embed(TEXTS)
    assert np.abs(before - _by_library(source)).max() <= 1e-5
    ours = _trained(TextEncoder(), source, tmp_path / "saved")
    assert np.abs(ours - _by_library(tmp_path / "saved")).max() <= 1e-5
    assert np.abs(ours - before).max() > 1e-3
    again = TextEncoder().load(tmp_path / "saved", device="cpu", dtype="float32")
    assert np.abs(ours - TextEmbedder(again).embed(TEXTS)).max() <= 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_and_a_merge_leave_the_same_files_beside_the_weights(
    kind: Callable[[Path], Path], tmp_path: Path
) -> None:
    source = kind(tmp_path / "m")
    for name in ("README.md", "trainer_state.json", "plot.png", "optimizer.pt"):
        (source / name).write_text("{}")
    (source / "LICENSE").write_text("mine")
    _trained(TextEncoder(), source, tmp_path / "saved")
    twin, out = shutil.copytree(source, tmp_path / "twin"), tmp_path / "merged"
    words = ("merge", source, twin, "--strategy", "linear", "--out", out, "--quiet")
    assert main([str(word) for word in words]) == 0
    trained, merged = _beside(tmp_path / "saved"), _beside(out)
    for written in ("artifact.json", "README.md"):  # by the run, about the merge
        assert merged.pop(written) != b"{}"
    assert trained.keys() == merged.keys()
    assert "LICENSE" in trained
    assert not {"README.md", "trainer_state.json", "plot.png"} & trained.keys()
    # A training writes down the longest text, which the newest release leaves to the tokenizer.
    lengths = {name for name in trained if name.endswith("sentence_bert_config.json")}
    assert {n: trained[n] for n in trained.keys() - lengths} == {
        n: merged[n] for n in merged.keys() - lengths
    }


def _beside(folder: Path) -> dict[str, bytes]:
    paths = [p for p in folder.rglob("*") if p.is_file() and p.suffix != ".safetensors"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_keys_that_nobody_knows_survive_a_training(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m")
    names = ("config.json", "config_sentence_transformers.json", "1_Pooling/config.json")
    names += ("tokenizer_config.json", "sentence_bert_config.json")
    for name in names:
        _edit(source, name, of_next_year={"a": [1, "é"]})
    modules = json.loads((source / "modules.json").read_text())
    modules[1]["kwargs"] = ["task"]
    (source / "modules.json").write_text(json.dumps(modules))
    changed = TextEncoder(pooling="cls", normalize=False, prompts={"query": "find "}, max_length=9)
    for backbone, place in ((TextEncoder(), "same"), (changed, "changed")):
        _trained(backbone, source, tmp_path / place)
        for name in names:
            kept = json.loads((tmp_path / place / name).read_text())
            assert kept["of_next_year"] == {"a": [1, "é"]}, name
        assert json.loads((tmp_path / place / "modules.json").read_text())[1]["kwargs"] == ["task"]
    assert not (tmp_path / "changed" / "2_Normalize").exists()


def test_options_change_a_folder_of_the_newest_release_in_its_own_words(tmp_path: Path) -> None:
    source = _only_new(tmp_path / "m")
    _edit(source, "1_Pooling/config.json", include_prompt=False)
    backbone = TextEncoder(
        pooling="cls", normalize=False, prompts={"query": "find: "}, max_length=9
    )
    ours = _trained(backbone, source, tmp_path / "saved")
    assert np.abs(ours - _by_library(tmp_path / "saved")).max() <= 1e-5
    pooling = json.loads((tmp_path / "saved" / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode"] == "cls"
    assert pooling["include_prompt"] is False
    assert SentenceTransformer(str(tmp_path / "saved"), device="cpu").prompts["query"] == "find: "
    trunk = json.loads((tmp_path / "saved" / "sentence_bert_config.json").read_text())
    assert {"modality_config", "module_output_name"} <= trunk.keys()


def _chat(folder: Path) -> Path:
    """As the newest release saves a model whose tokenizer has a chat template."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    plain = tiny.checkpoint(folder.with_name("plain"), sentence_transformer=False)
    (plain / "chat_template.jinja").write_text(TEMPLATE)
    model = SentenceTransformer(modules=[Transformer(str(plain)), Pooling(32)], device="cpu")
    model.save_pretrained(str(folder))
    return folder


def test_a_folder_whose_texts_are_messages_is_refused_with_the_way_out(tmp_path: Path) -> None:
    source = _chat(tmp_path / "m")
    by_message = _by_library(source)
    (problem,) = TextEncoder().check(source)
    assert str(source) in problem
    assert "'message'" in problem
    assert "modality_config in sentence_bert_config.json" in problem
    with pytest.raises(CheckpointError, match="chat template"):
        TextEncoder().load(source, device="cpu", dtype="float32")
    settings = json.loads((source / "sentence_bert_config.json").read_text())
    del settings["modality_config"]["message"]
    (source / "sentence_bert_config.json").write_text(json.dumps(settings))
    plain = TextEmbedder(TextEncoder().load(source, device="cpu", dtype="float32")).embed(TEXTS)
    assert np.abs(plain - _by_library(source)).max() <= 1e-5
    assert np.abs(plain - by_message).max() > 1e-2, "which is why it was refused"


def test_a_bare_folder_with_a_chat_template_embeds_plain_text(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m", sentence_transformer=False)
    (source / "chat_template.jinja").write_text(TEMPLATE)
    ours = _trained(TextEncoder(pooling="mean"), source, tmp_path / "saved")
    assert np.abs(ours - _by_library(tmp_path / "saved")).max() <= 1e-5


def test_text_that_goes_another_way_is_refused(tmp_path: Path) -> None:
    source = _new(tmp_path / "m")
    config = {"text": {"method": "get_text_features", "method_output_name": "pooler_output"}}
    _edit(
        source,
        "sentence_bert_config.json",
        modality_config=config,
        module_output_name="sentence_embedding",
    )
    (problem,) = TextEncoder().check(source)
    assert "get_text_features" in problem
    assert "sentence_bert_config.json" in problem
