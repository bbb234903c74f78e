"""What opens a model's folder takes `base+adapter` too; statistics files go from one run to the next."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from emberge import CheckpointError, Machine, Model
from emberge.cli.main import main
from emberge.merging import MergeInput, open_whole_model
from emberge_merge.methods.weighted_sums import Passthrough
from safetensors.torch import load_file, save_file

from tests.support.bench import write_catalogue
from tests.support.json_files import edit
from tests.support.merges import merge_models
from tests.support.peft_adapters import save_adapter
from tests.support.training_data import retrieval

QUERY = "encoder.layer.0.attention.self.query.weight"
KINDS: dict[str, dict[str, Any]] = {
    "a": {
        "target_modules": ["query", "value", "word_embeddings"],
        "use_rslora": True,
        "lora_alpha": 64,
    },
    "b": {
        "target_modules": ["query", "output.dense", "word_embeddings"],
        "use_dora": True,
        "lora_alpha": 64,
    },
}
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def models(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, the adapters a and b, each written whole as well, data and sets to evaluate on."""
    root = tmp_path_factory.mktemp("models")
    shutil.copytree(bert, root / "base")
    for seed, (name, settings) in enumerate(KINDS.items()):
        save_adapter(root / name, root / "base", seed=seed, **settings)
        one = [MergeInput(name, root / "base", adapter=root / name)]
        merge_models(one, strategy=[Passthrough()], out=root / f"whole-{name}")
    lines = [{"anchor": r.anchor, "positive": r.positives[0]} for r in retrieval(8).rows]
    (root / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    write_catalogue(root / "sets", ["retrieval", "sts"])
    return root


@pytest.fixture
def place(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for one in models.iterdir():
        (tmp_path / one.name).symlink_to(one)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: Capture, out: str, steps: Any, *, verb: str = "run", code: int = 0) -> str:
    """What a run says of itself and its faults."""
    Path(f"{out}.yaml").write_text(yaml.safe_dump({"steps": steps}))
    words = ["--out", out] if verb == "run" else []
    found = main([verb, f"{out}.yaml", *words])
    said = capsys.readouterr()
    assert found == code, said.err
    assert "Traceback" not in said.err
    return " ".join((said.out + said.err).split())


def measured(kind: str, **models: str) -> Any:
    data = [{"path": "./data.jsonl", "task": "retrieval"}]
    return {"stats": {"measure_statistics": {"models": models, "measure": kind, "data": data}}}


def test_an_adapter_on_its_base_scores_as_the_whole_model_does(
    place: Path, capsys: Capture
) -> None:
    models = ["./base", "./base+./b", "./whole-b"]
    evaluators = {"mteb": {"data": [{"path": "./sets/datasets.yaml"}]}}
    run(capsys, "out", {"scores": {"evaluate": {"models": models, "evaluators": evaluators}}})
    found = json.loads((place / "out" / "scores" / "scores.json").read_text())
    base, adapted, whole = found["values"].values()
    assert adapted == whole
    assert adapted != base


def test_an_adapter_that_does_not_fit_is_said_before_any_work(
    place: Path, berts: list[Path], capsys: Capture
) -> None:
    broken = shutil.copytree(place / "a", place / "broken")
    changes = {"base_model_name_or_path": "acme/another-model", "peft_type": "IA3"}
    edit(broken, "adapter_config.json", **changes)
    evaluators = {"mteb": {"data": [{"path": "./sets/datasets.yaml"}]}}
    models = ["./base+./broken"]
    for steps in (
        measured("fisher", one=models[0]),
        measured("gram", one=models[0]),
        {"scores": {"evaluate": {"models": models, "evaluators": evaluators}}},
    ):
        said = run(capsys, "bad", steps, verb="check", code=2)
        assert "adapters of type IA3 are not merged" in said
        assert "bad.yaml:" in said


def test_the_whole_folder_goes_away_and_one_that_a_kill_left_is_used(
    place: Path, tmp_path: Path
) -> None:
    model = Model("a", place / "base", "f" * 64, None, place / "a")
    work = tmp_path / "work"
    with open_whole_model(model, work, Machine()) as folder:
        first = load_file(folder / "model.safetensors")
        assert (folder / "modules.json").is_file()
        left = shutil.copytree(folder, tmp_path / "left")
    assert not folder.exists()
    expected = load_file(place / "whole-a" / "model.safetensors")
    assert all(torch.equal(first[n], expected[n]) for n in expected)
    (left / "mark").touch()
    shutil.copytree(left, folder)
    with open_whole_model(model, work) as again:
        assert (again / "mark").is_file()
    with open_whole_model(Model("base", place / "base", "b"), work) as plain:
        assert plain == place / "base"
    assert plain.is_dir()


def test_a_whole_model_of_a_bfloat16_base_is_in_float32(place: Path, tmp_path: Path) -> None:
    base = shutil.copytree(place / "base", tmp_path / "half")
    half = {n: t.bfloat16() for n, t in load_file(base / "model.safetensors").items()}
    save_file(half, base / "model.safetensors", {"format": "pt"})
    with open_whole_model(Model("a", base, "f" * 64, None, place / "a"), tmp_path / "w") as folder:
        whole = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in whole.values()} == {torch.float32}
    name = QUERY.replace("query", "key")
    assert torch.equal(whole[name], half[name].float())


def test_an_adapter_that_is_not_finite_makes_no_whole_model(place: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(place / "a", tmp_path / "broken")
    file = broken / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "query.lora_B" in name)
    tensors[name][0, 0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    model = Model("broken", place / "base", "e" * 64, None, broken)
    work = tmp_path / "work"
    place_and_model = r"attention\.self\.query\.weight.*'broken'"
    with pytest.raises(CheckpointError, match=place_and_model), open_whole_model(model, work):
        pass
    assert not any((work / "whole").glob("e*"))
