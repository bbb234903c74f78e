"""What goes into a merge and is no good is said in one line before work starts, and nothing is left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from emberge.cli.main import main
from safetensors.torch import load_file, save_file

from tests.support.peft_adapters import save_adapter

Capture = pytest.CaptureFixture[str]
Change = Callable[[Path], str]


@pytest.fixture(scope="module")
def models(bert: Path, berts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a sibling, and adapters: two alike, one that saves a module, and one that knows its base."""
    root = tmp_path_factory.mktemp("models")
    shutil.copytree(bert, root / "bert")
    shutil.copytree(berts[0], root / "other")
    for seed in (0, 1):
        save_adapter(root / f"a{seed}", root / "bert", seed=seed)
    save_adapter(root / "saved", root / "bert", modules_to_save=["pooler"])
    recipe = root / "known.yaml"
    recipe.write_text("steps: {made: {merge_adapters: {models: [./bert+./a0]}}}")
    assert main(["run", str(recipe), "--out", str(root / "run"), "--quiet"]) == 0
    shutil.copytree(root / "run" / "made", root / "known")
    return root


@pytest.fixture
def place(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("bert", "other", "a0", "a1", "saved", "known"):
        shutil.copytree(models / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def merge(*models: str, more: str = "", strategy: str = "linear") -> str:
    entries = "".join(f"        - {model}\n" for model in models)
    end = f"      strategy: {strategy}\n{more}"
    return f"steps:\n  merged:\n    merge:\n      models:\n{entries}{end}"


def mergekit(*models: str, more: str = "") -> str:
    entries = "".join(f"  - model: {model}\n    parameters: {{weight: 1}}\n" for model in models)
    return f"models:\n{entries}merge_method: linear\n{more}"


def base_of_the_same_name(place: Path) -> str:
    """One number of the base has changed since the adapter was made."""
    state = load_file(place / "bert" / "model.safetensors")
    state["encoder.layer.1.output.dense.bias"][0] += 1e-3
    save_file(state, place / "bert" / "model.safetensors", {"format": "pt"})
    return merge("./bert+./known", "./other")


def base_of_another_name(place: Path) -> str:
    snapshot = place / "models--acme--small" / "snapshots" / "0a1b2c"
    shutil.copytree(place / "bert", snapshot)
    path = place / "a0" / "adapter_config.json"
    said = {**json.loads(path.read_text()), "base_model_name_or_path": "acme/large"}
    path.write_text(json.dumps(said))
    return merge(f"{snapshot}+./a0", "./other")


def other_modules_saved(place: Path) -> str:
    return merge("./bert+./a0", "./bert+./saved")


def clashing_ids(place: Path) -> str:
    path = place / "other" / "tokenizer.json"
    said = json.loads(path.read_text())
    vocab = said["model"]["vocab"]
    vocab["cat"] = vocab.pop("table")
    path.write_text(json.dumps(said))
    return merge("./bert", "./other")


def pickled_model(place: Path) -> str:
    state = load_file(place / "other" / "model.safetensors")
    torch.save(state, place / "other" / "pytorch_model.bin")
    (place / "other" / "model.safetensors").unlink()
    return merge("./bert", "./other")


def pickled_adapter(place: Path) -> str:
    torch.save(
        load_file(place / "a0" / "adapter_model.safetensors"), place / "a0" / "adapter_model.bin"
    )
    (place / "a0" / "adapter_model.safetensors").unlink()
    return merge("./bert+./a0", "./other")


CASES: dict[str, tuple[Change | str, str]] = {
    "an adapter of another base by content": (
        base_of_the_same_name,
        "known: is an adapter of 'bert', whose weights differ from those of",
    ),
    "an adapter of another base by name": (
        base_of_another_name,
        "is an adapter of 'acme/large', and 'acme/small' is another model",
    ),
    "other modules_to_save": (
        other_modules_saved,
        "saves no module whole (modules_to_save) and './bert+./saved' pooler",
    ),
    "ids that clash": (clashing_ids, 'is "table" in one and "cat" in the other'),
    "a pickled model": (pickled_model, "emberge safetensors"),
    "a pickled adapter": (pickled_adapter, "emberge safetensors"),
    "a folder that is missing": (merge("./bert", "./oter"), "'./oter': there is no such folder"),
    "an adapter that is missing": (
        merge("./bert+./a7", "./other"),
        "'./a7': there is no such folder",
    ),
    "a model that is no model": (
        merge("./bert", "."),
        "it has neither modules.json nor config.json",
    ),
    "a step that needs itself": (merge("./bert", "$merged"), "needs its own output"),
    "an unknown key of a step": (
        merge("./bert", "./other", more="      wieghts: size\n"),
        "has no option 'wieghts'; did you mean 'weights'?",
    ),
    "an unknown key of a model": (
        merge("./bert", "{model: ./other, wieght: 2}"),
        "has no option 'wieght'; did you mean 'weight'?",
    ),
    "an unknown key of a strategy": (
        merge("./bert", "./other", strategy="{slerp: {tt: 0.5}}"),
        "has no option 'tt'; did you mean 't'?",
    ),
    "an unknown key of a schedule": (
        merge("./bert", "{model: ./other, weight: [{filer: mlp, value: 1}]}"),
        "an entry has 'value' and maybe 'filter', not {'filer'",
    ),
    "an unknown key of a vocabulary": (
        merge("./bert", "./other", more="      vocabulary: {polcy: union}\n"),
        "did you mean 'policy'?",
    ),
    "a config of a missing folder": (
        mergekit("./bert", "./oter"),
        "'./oter': there is no such folder",
    ),
    "a config that names itself": (
        f"name: x\n{mergekit('./bert', 'x')}",
        "config 'x' names itself as a model",
    ),
    "a config with an unknown key": (
        mergekit("./bert", "./other", more="tokenizer: {sorce: union}\n"),
        "has no 'sorce'; did you mean 'source'?",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_said_before_any_work(case: str, place: Path, capsys: Capture) -> None:
    given, expected = CASES[case]
    Path("r.yaml").write_text(given if isinstance(given, str) else given(place))
    for words in (["check", "r.yaml"], ["run", "r.yaml", "--out", "out"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "Traceback" not in said
        lines = [line for line in said.splitlines() if expected in line]
        assert lines, said
        assert all(line.startswith("error: r.yaml:") for line in lines), said
    assert not list(place.glob("out/**/*.safetensors"))
