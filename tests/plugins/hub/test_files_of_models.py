"""The files that make a model are known by their names, on a hub, in a bucket and in a cache."""

from __future__ import annotations

from typing import Any

import pytest
from emberge import CheckpointError
from emberge_hub import hub, locate_model, model_address
from emberge_hub.hub import select_metadata, select_weights

METADATA = [
    *("config.json", "vocab.txt", "spiece.model", "chat_template.jinja", "a.tiktoken", "a.vocab"),
    *("a.bpe", "a.spm", "a.codes", "modeling_own.py", "a.metadata", "README.md", "LICENSE"),
    *("LICENSE.txt", "NOTICE", "1_Pooling/config.json", "LICENSE-MODEL"),
]
OTHERS = ["a.md", "logo.png", "model.h5", ".gitattributes", "onnx/config.json", "gguf/a.json"]
OTHERS += ["openvino/config.json", "coreml/config.json", "original/params.json"]


def test_configs_tokenizers_code_and_licences_are_metadata() -> None:
    assert select_metadata([*OTHERS, *METADATA, "model.safetensors", "a.bin"]) == METADATA
    assert [name for name in METADATA if not select_metadata([name])] == []


def test_a_folder_with_safetensors_needs_no_pickle() -> None:
    names = ["a.bin", "model.safetensors", "2_Dense/b.bin", "3_D/c.safetensors", "3_D/c.bin"]
    assert select_weights([*OTHERS, *names, "onnx/model.bin"]) == [
        *("model.safetensors", "3_D/c.safetensors", "2_Dense/b.bin")
    ]
    assert hub._build_patterns(["a.json", *names], "metadata") == ["a.json"]
    assert hub._build_patterns(["a.json", "a.bin"], "all") == ["a.json", "a.bin"]
    # Names of files are no patterns.
    assert hub._build_patterns(["a.json", "b[1]*?.txt"], "metadata") == [
        "a.json",
        "b[[]1][*][?].txt",
    ]


@pytest.mark.parametrize(
    "name", ["owner", "owner/name", "o-w.n_1/n.a-m_e", "../a", "/a", "a/b/c", "a//b", "-a/b", "a b"]
)
def test_only_names_of_hub_form_are_looked_up_on_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(hub, "fetch_from_hub", lambda *words: asked.append(words))
    locate_model(name, "v1", "metadata")
    known = name in ("owner", "owner/name", "o-w.n_1/n.a-m_e")
    assert asked == [(name, "v1", "metadata")] * known


@pytest.mark.parametrize("name", ["", "a//b", "a/..", "/a", "a?b", "a#b", "a\\b", "https://a"])
def test_a_file_name_outside_the_models_folder_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"^https://h/m: names the file .* leads out"):
        model_address._require_inside("https://h/m", name)
    for sound in ("a", "a/b.json", "..a/b..", "a b", "a:b"):
        model_address._require_inside("https://h/m", sound)


def test_a_folder_without_a_config_and_ranges_of_a_pickle_are_refused() -> None:
    require = model_address._require_model
    with pytest.raises(CheckpointError, match=r"^s3://m: there is no model here"):
        require("s3://m", ["model.safetensors", "my_config.json"], "all")
    require("s3://m", ["0_T/config.json", "a.bin"], "all")
    for files in ("ranges", "metadata"):
        with pytest.raises(CheckpointError, match=r"^s3://m/a\.bin: .*`emberge safetensors`"):
            require("s3://m", ["adapter_config.json", "a.bin"], files)


@pytest.mark.parametrize("address", ["https://me@h/m", "https://:pw@h/m", "https://h/m?token=pw"])
def test_an_address_with_credentials_is_refused_without_showing_them(address: str) -> None:
    with pytest.raises(CheckpointError, match=r"^https://h/m: .*credentials as the bucket's"):
        model_address._require_plain(address)
    model_address._require_plain("https://h:8443/m@v1")
