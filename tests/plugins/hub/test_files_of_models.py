"""Files that make a model, by their names alone: on a hub, on a web server, and in a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError
from emberge_hub import at_address, hub, locate_model
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
        *("model.safetensors", "3_D/c.safetensors", "2_Dense/b.bin"),
    ]
    assert hub._select_files(["a.json", *names], "metadata") == ["a.json"]
    assert hub._select_files(["a.json", "a.bin"], "all") == ["a.json", "a.bin"]
    # Names of files are no patterns.
    assert hub._escape_patterns(["a.json", "b[1]*?.txt"]) == ["a.json", "b[[]1][*][?].txt"]


def test_a_model_in_the_cache_has_a_config_and_all_its_weights(tmp_path: Path) -> None:
    assert not hub._has_config(tmp_path)
    for sign in ("modules.json", "config.json", "adapter_config.json"):
        (tmp_path / sign).write_text("{}")
        assert hub._has_config(tmp_path)
        (tmp_path / sign).unlink()
    assert not hub._has_weights(tmp_path)
    (tmp_path / "2_Dense").mkdir()
    for name in ("2_Dense/a.bin", "b.safetensors"):
        (tmp_path / name).write_bytes(b"")
        assert hub._has_weights(tmp_path)
        (tmp_path / name).unlink()
    index = tmp_path / "2_Dense" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    (tmp_path / "2_Dense" / "1.safetensors").write_bytes(b"")
    assert not hub._has_weights(tmp_path)
    (tmp_path / "2_Dense" / "2.safetensors").write_bytes(b"")
    assert hub._has_weights(tmp_path)


@pytest.mark.parametrize(
    "name", ["owner", "owner/name", "o-w.n_1/n.a-m_e", "../a", "/a", "a/b/c", "a//b", "-a/b", "a b"]
)
def test_the_form_of_a_name_decides_who_is_asked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(hub, "fetch_from_hub", lambda *words: asked.append(words))
    locate_model(name, "v1", "metadata")
    known = name in ("owner", "owner/name", "o-w.n_1/n.a-m_e")
    assert asked == [(name, "v1", "metadata")] * known


# ── web servers ─────────────────────────────────────────────────────────────────────────────────


def test_folders_of_modules_are_asked_for_their_files() -> None:
    names = at_address._list_module_files
    trunk, head = {"path": "0_T", "type": "a.b.Transformer"}, {"path": "1_P", "type": "a.Pooling"}
    assert names([head, {"path": ""}, {}, "x", head]) == [
        "1_P/config.json",
        "1_P/model.safetensors",
    ]
    assert names([trunk]) == [f"0_T/{name}" for name in at_address._ASKED]
    assert names([{"path": "2"}]) == ["2/config.json", "2/model.safetensors"]
    assert names({"path": "2"}) == names(None) == []


def test_an_index_names_the_weights_beside_it() -> None:
    index = "0_T/model.safetensors.index.json"
    weights = {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}
    assert at_address._list_shards(index, {"weight_map": weights}) == {
        "0_T/1.safetensors",
        "0_T/2.safetensors",
    }
    wrong: tuple[Any, ...] = ([], {}, {"weight_map": ["1.safetensors"]})
    for content in wrong:
        assert at_address._list_shards(index, content) == set()
    names = ["a", "a/b.json", "..a/b..", "a b", "a:b"]
    weights = dict(zip("abcde", names, strict=True))
    assert at_address._list_shards("i", {"weight_map": weights}) == set(names)
    for name in names:
        at_address._require_inside("https://h/m", name)


@pytest.mark.parametrize(
    "name", ["", "a//b", "./a", "a/..", "/a", "a?b", "a#b", "a\\b", "a\x1fb", "https://a"]
)
def test_a_name_that_leads_out_of_the_models_folder_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"^https://h/m: names the file .* leads out"):
        at_address._require_inside("https://h/m", name)


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/x", "", "a/../../x", "https://x/y"])
def test_an_index_that_names_no_file_below_the_address_is_refused(shard: str) -> None:
    (name,) = at_address._list_shards("model.safetensors.index.json", {"weight_map": {"a": shard}})
    if "://" not in shard:
        with pytest.raises(CheckpointError, match="leads out"):
            at_address._require_inside("https://h/m", name)
    else:
        assert name == "https:/x/y"  # a file below the address


def test_a_model_has_a_config_and_no_pickle_to_be_read_in_part() -> None:
    require = at_address._require_model
    with pytest.raises(CheckpointError, match=r"^s3://m: there is no model here"):
        require("s3://m", ["model.safetensors", "my_config.json"], "all")
    require("s3://m", ["0_T/config.json", "a.bin"], "all")
    for files in ("ranges", "metadata"):
        with pytest.raises(CheckpointError, match=r"^s3://m/a\.bin: .*`emberge safetensors`"):
            require("s3://m", ["adapter_config.json", "a.bin"], files)


@pytest.mark.parametrize("address", ["https://me@h/m", "https://:pw@h/m", "https://h/m?token=pw"])
def test_an_address_with_credentials_is_shown_without_them(address: str) -> None:
    with pytest.raises(CheckpointError, match=r"^https://h/m: .*credentials as the bucket's"):
        at_address._require_plain(address)
    at_address._require_plain("https://h:8443/m@v1")
