"""What a training leaves is read alike by sentence-transformers and by emberge, as what it began from was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import CheckpointError
from emberge.encoding import TextEmbedder
from emberge_encoder.text_encoder import TextEncoder
from sentence_transformers import SentenceTransformer

from tests.support import tiny
from tests.support.json_files import changing, edit
from tests.support.whole import move_trunk

TEXTS = ["how to read a file", "Sort a LIST of numbers", "weather", "a " * 300]
FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}
TEMPLATE = "{% for m in messages %}{{ m['role'] }} the {{ m['content'] }} file {% endfor %}"


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
    return move_trunk(tiny.checkpoint(folder))


def _chat(
    folder: Path,
    template: str = TEMPLATE,
    architecture: str = "bert",
    pooling: str = "mean",
    **options: Any,
) -> Path:
    """As the newest release saves a model whose tokenizer has a chat template."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    plain = tiny.checkpoint(folder.with_name("plain"), architecture, sentence_transformer=False)
    (plain / "chat_template.jinja").write_text(template)
    trunk = Transformer(str(plain), processing_kwargs={"chat_template": options})
    SentenceTransformer(
        modules=[trunk, Pooling(32, pooling)], prompts={"query": "find: "}, device="cpu"
    ).save_pretrained(str(folder))
    assert "message" in (folder / "sentence_bert_config.json").read_text()
    return folder


KINDS = [tiny.checkpoint, _new, _only_new, _in_subfolder, _chat]


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


def test_keys_that_nobody_knows_survive_a_training(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m")
    names = ("config.json", "config_sentence_transformers.json", "1_Pooling/config.json")
    names += ("tokenizer_config.json", "sentence_bert_config.json")
    for name in names:
        edit(source, name, of_next_year={"a": [1, "é"]})
    with changing(source / "modules.json") as modules:
        modules[1]["kwargs"] = ["task"]
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
    edit(source, "1_Pooling/config.json", include_prompt=False)
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


def test_a_bare_folder_with_a_chat_template_embeds_plain_text(tmp_path: Path) -> None:
    source = tiny.checkpoint(tmp_path / "m", sentence_transformer=False)
    (source / "chat_template.jinja").write_text(TEMPLATE)
    ours = _trained(TextEncoder(pooling="mean"), source, tmp_path / "saved")
    assert np.abs(ours - _by_library(tmp_path / "saved")).max() <= 1e-5


STRUCTURED = (
    "{% for m in messages %}{{ m.role }}{% for c in m.content %}{% if c.type == 'text' %}: {{ c.text }}"
    "{% endif %}{% endfor %} file {% endfor %}{% if add_generation_prompt %}answer{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "options"),
    [
        (TEMPLATE, {}),
        (STRUCTURED, {}),
        (STRUCTURED, {"add_generation_prompt": True}),
        (STRUCTURED, {"add_generation_prompt": True, "restore_suffix": False}),
        ("of {{ messages[-1]['content'] }}", {}),
    ],
)
def test_a_text_is_the_message_that_sentence_transformers_makes_of_it(
    template: str, options: dict[str, Any], tmp_path: Path
) -> None:
    source = _chat(tmp_path / "m", template, "qwen3", "lasttoken", **options)
    backbone = TextEncoder(max_length=24)
    assert not backbone.describe(source).problems
    _trained(backbone, source, tmp_path / "saved")
    before, after = (
        json.loads((folder / "sentence_bert_config.json").read_text())
        for folder in (source, tmp_path / "saved")
    )
    assert after == before | {"max_seq_length": 24, "do_lower_case": False}
    for folder in (source, tmp_path / "saved"):
        encoder = TextEmbedder(TextEncoder().load(folder, device="cpu", dtype="float32"))
        for prompt in ("", "find: "):
            theirs = _by_library(folder, prompt=prompt)
            assert np.abs(encoder.embed(TEXTS, prompt=prompt) - theirs).max() <= 1e-5


ALONE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('alone!') }}{% endif %}" + TEMPLATE
)


def test_a_prompt_that_a_template_does_not_take_is_named_when_it_comes(tmp_path: Path) -> None:
    source = _chat(tmp_path / "m", ALONE)
    edit(source, "config_sentence_transformers.json", prompts={})
    encoder = TextEncoder().load(source, device="cpu", dtype="float32")
    assert len(encoder.tokenise(TEXTS, prompt="", max_length=None)) == len(TEXTS)
    with pytest.raises(CheckpointError, match=r"'sort: '.*alone!"):
        encoder.tokenise(TEXTS, prompt="sort: ", max_length=None)


MODES = dict.fromkeys(("text", "message", "image"), FORWARD)
ANOTHER_WAY = {"text": {"method": "get_text_features", "method_output_name": "pooler_output"}}
SETTINGS = "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("make", "settings", "named"),
    [
        (_chat, {"modality_config": MODES}, "'message'"),
        (_chat, {"processing_kwargs": {"text": {"add_special_tokens": 0}}}, "'add_special_tokens'"),
        (_chat, {"processing_kwargs": {"chat_template": {"max_length": 9}}}, "'max_length'"),
        (
            _new,
            {"modality_config": ANOTHER_WAY, "module_output_name": "sentence_embedding"},
            "get_text_features",
        ),
    ],
)
def test_texts_that_cannot_be_read_as_the_folder_says_are_refused(
    make: Callable[..., Path], settings: dict[str, Any], named: str, tmp_path: Path
) -> None:
    source = make(tmp_path / "m")
    edit(source, SETTINGS, **settings)
    (problem,) = TextEncoder().describe(source).problems
    assert [word for word in (str(source), SETTINGS, named) if word not in problem] == []
    with pytest.raises(CheckpointError):
        TextEncoder().load(source, device="cpu", dtype="float32")
