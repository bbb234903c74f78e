"""What a reference means, and what a model's fingerprint is made of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from emberge import CheckpointError, DataError, DataRef, ModelRef, Plugins, hookimpl
from emberge.hashes import HashCache
from emberge.model_folder import hash_model
from emberge.recipes import locate_model
from emberge.recipes.fingerprints import describe_content
from emberge.recipes.references import list_kept_checkpoints, locate_file
from emberge.recipes.targets import Targets

from tests.support import tiny
from tests.support.fixture_types import Patch


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    modules = [{"name": path, "path": path, "type": "T"} for path in ("0", "1_Pooling")]
    modules[0]["path"] = ""
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize("text", ["./model", "../here/model", "{absolute}", "~/model"])
def test_a_folder_is_found_from_a_recipe(text: str, tmp_path: Path, monkeypatch: Patch) -> None:
    here = tmp_path / "here"
    (here / "model").mkdir(parents=True)
    (here / "model" / "config.json").write_text("{}")
    monkeypatch.setenv("HOME", str(here))
    reference = ModelRef(text.format(absolute=here / "model"), here)
    found = locate_model(reference, Plugins())
    assert found.folder.resolve() == (here / "model").resolve()
    assert found.name == "model"


def test_after_the_plus_sign_is_an_adapter_or_part_of_a_folder(model: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"'\./adapter' is no adapter"):
        locate_model(ModelRef("./model+./adapter", tmp_path), Plugins())
    (adapter / "adapter_config.json").write_text("{}")
    found = locate_model(ModelRef("./model+./adapter", tmp_path), Plugins())
    assert (found.folder, found.adapter) == (model, adapter)
    assert found.name == "model+adapter"
    assert hash_model(model, adapter=adapter) != hash_model(model)
    folder = tmp_path / "a+./b"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert locate_model(ModelRef("./a+./b", tmp_path), Plugins()).folder == folder
    reference = ModelRef("$base+./adapter")
    assert (reference.step, reference.adapter) == ("base", "./adapter")
    kept = ModelRef("$runs.rate=1e+05.checkpoints+me/adapter")
    assert (kept.step, kept.part, kept.adapter) == ("runs.rate=1e+05", "checkpoints", "me/adapter")


class Finder:
    """Finds models of its own scheme."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @hookimpl
    def locate_model(self, reference: str, revision: str | None) -> Path | None:
        return self.folder / (revision or "main") if reference == "mine:model" else None


def test_a_plugin_finds_models_of_its_own(model: Path, tmp_path: Path) -> None:
    plugins = Plugins()
    plugins.register(Finder(tmp_path), "finder")
    model.rename(tmp_path / "v2")
    assert locate_model(ModelRef("mine:model@v2"), plugins).folder == tmp_path / "v2"


def test_a_missing_model_is_reported_with_the_places_searched_and_the_remedy(
    tmp_path: Path, model: Path
) -> None:
    with pytest.raises(CheckpointError, match="no plugin that looks for models is loaded"):
        locate_model(ModelRef("me/model", tmp_path), Plugins())
    plugins = Plugins()
    plugins.register(Finder(tmp_path), "finder")
    (tmp_path / "me" / "here").mkdir(parents=True)
    for text, advice in (
        ("me/x", r"asked: finder\); if you meant the folder \./me/x"),
        ("me/here", r"a folder me/here is here; write \./me/here \(me/here@main is"),
        ("ftp://me/x", r"asked: finder\); addresses are read that begin with hf://"),
    ):
        with pytest.raises(CheckpointError, match=advice):
            locate_model(ModelRef(text, tmp_path), plugins)
    with pytest.raises(CheckpointError) as caught:
        locate_model(ModelRef("./modle", tmp_path), Plugins())
    assert str(tmp_path / "modle") in str(caught.value)
    assert "did you mean 'model'?" in str(caught.value)


def test_data_is_an_existing_file_or_an_installed_package(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(DataError, match=r"did you mean 'rows\.jsonl'"):
        locate_file(DataRef("./row.jsonl", tmp_path))
    assert locate_file(DataRef("rows.jsonl", tmp_path)) == tmp_path / "rows.jsonl"
    assert locate_file(DataRef("pkg:json", tmp_path)) == Path(json.__file__).parent
    with pytest.raises(DataError, match="'pkg:no_such_package': no such package"):
        locate_file(DataRef("pkg:no_such_package", tmp_path))


def test_no_network_is_an_error_when_a_model_is_needed() -> None:
    class Away:
        @hookimpl
        def locate_model(self, reference: str) -> Path | None:
            raise ConnectionError("the hub cannot be reached")

    plugins = Plugins()
    plugins.register(Away(), "away")
    with pytest.raises(CheckpointError, match=r"'nope' was not found: the hub.*no folder \./nope"):
        Targets(plugins, HashCache()).model(ModelRef("nope"))


def test_checkpoints_are_ordered_by_number(tmp_path: Path) -> None:
    for name in ("step-100", "step-9", "step-20", ".part-1"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert [p.name for p in list_kept_checkpoints(tmp_path)] == ["step-9", "step-20", "step-100"]
    assert list_kept_checkpoints(tmp_path / "none") == []


def test_only_the_used_sets_of_a_catalogue_decide_the_fingerprint(tmp_path: Path) -> None:
    from emberge import DataEntry

    (tmp_path / "one.jsonl").write_text('{"anchor": "a", "positive": "b"}\n')
    (tmp_path / "two.jsonl").write_text('{"anchor": "a", "positive": "b"}\n')
    (tmp_path / "datasets.yaml").write_text(
        "train:\n"
        "- {name: one, file: one.jsonl, task: retrieval}\n"
        "- {name: two, file: two.jsonl, task: retrieval}\n"
    )
    targets = Targets(Plugins(), HashCache())
    path = DataRef("datasets.yaml", tmp_path)
    entry = DataEntry(path=path, only=("one",))
    part, whole = describe_content(entry, targets), describe_content(path, targets)
    (tmp_path / "two.jsonl").write_text("other")
    assert describe_content(entry, targets) == part
    assert describe_content(path, targets) != whole
    (tmp_path / "one.jsonl").write_text("other")
    assert describe_content(entry, targets) != part


def test_an_adapters_folder_is_put_on_the_base_that_its_config_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from emberge import load_plugins
    from emberge.cli.main import main
    from emberge.recipes.references import complete_reference, locate_model

    from tests.support.peft_adapters import save_adapter

    base = tiny.checkpoint(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    plugins = load_plugins()
    for number, name in enumerate((str(base), "base", "./base")):
        adapter = save_adapter(tmp_path / f"a{number}", base, name=name)
        found = locate_model(ModelRef(f"./a{number}", tmp_path), plugins)
        assert (found.name, found.adapter) == (adapter.name, adapter)
        assert found.folder.samefile(base)
    shutil.copytree(tmp_path / "a0", tmp_path / "more/a0")
    spellings = {
        "a0": "./a0",
        "base+./a0": "./base+./a0",
        "base+a0": "./base+./a0",
        "./base+more/a0": "./base+./more/a0",
        "me/base+a0": "me/base+./a0",
        "me/base+me/ad": "me/base+me/ad",
        "me/base": "me/base",
    }
    assert {text: complete_reference(text) for text in spellings} == spellings
    save_adapter(tmp_path / "lost", base, name="/gone/base")
    assert main(["merge", "./lost", "./base", "--out", "m", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "an adapter of '/gone/base', which is not here" in said
    proposed = said.split("as ")[-1].strip()
    assert proposed == "./BASE+./lost"
    words = ["merge", proposed.replace("BASE", "base"), "base", "--out", "m", "--quiet"]
    assert main(words) == 0
