"""`emberge_merge.merge` merges as the command does, from plain Python data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import RecipeError
from emberge.cli.main import main
from emberge_merge import merge
from safetensors.torch import load_file

from tests.support.json_files import edit


def test_a_merge_gives_the_bytes_of_the_command(
    berts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(berts[0].parent)
    names = [bert.name for bert in berts[:2]]
    with pytest.warns(UserWarning, match="'slerp' uses no weights, so those given change nothing"):
        merged = merge(
            *(names,),
            **{"strategy": {"slerp": {"t": 0.25}}, "weights": [0.6, 0.4]},
            **{"out": tmp_path / "one", "quiet": True},
        )
    assert "| Weight |" not in (tmp_path / "one" / "README.md").read_text("utf-8")
    words = ["merge", *names, "--strategy", "slerp", "--set", "t=0.25", "--weight", "0.6,0.4"]
    assert main([*words, "--out", str(tmp_path / "two"), "--quiet"]) == 0
    files = sorted(path.name for path in (tmp_path / "two").iterdir())
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == files
    changing = {"artifact.json", "model.safetensors"}  # the recipe's hash, times
    for name in set(files) - changing:
        if (tmp_path / "two" / name).is_file():
            assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    one, two = (load(tmp_path / name) for name in ("one", "two"))
    assert all(one[name].equal(two[name]) for name in {*one, *two})
    assert (merged.id, merged.path) == ("one", tmp_path / "one")
    assert not list(tmp_path.glob(".*"))


def load(folder: Path) -> Any:
    return load_file(folder / "model.safetensors")


def test_a_merged_model_loads_and_merges_on(berts: list[Path], tmp_path: Path) -> None:
    first = merge(berts[:2], out=tmp_path / "first", quiet=True)
    assert first.load(device="cpu").encode("a list").shape == (32,)
    again = merge([first, berts[2]], weights=[2, 1], out=str(tmp_path / "again"), quiet=True)
    name = "encoder.layer.1.output.dense.weight"
    mean = sum(load(bert)[name] for bert in berts) / 3
    assert load(again.path)[name].allclose(mean, atol=1e-6)
    other = Path(shutil.copytree(berts[2], tmp_path / "other"))
    edit(other, "tokenizer_config.json", padding_side="left")
    with pytest.warns(UserWarning, match="padding_side"):
        merge([first, other], out=tmp_path / "warned", quiet=True)


def test_a_merge_takes_all_options_of_steps(bert: Path, berts: list[Path], tmp_path: Path) -> None:
    options: dict[str, Any] = {"base": bert, "out_dtype": "bfloat16", "quiet": True}
    merged = merge(berts[:2], out=tmp_path / "kept", keep=0.5, **options)
    name = "encoder.layer.1.output.dense.weight"
    tensors = load(merged.path)
    assert tensors[name].dtype == torch.bfloat16
    middle = (load(berts[0])[name] + load(berts[1])[name]) / 2
    assert tensors[name].float().allclose((middle + load(bert)[name]) / 2, atol=1e-2)
    with pytest.raises(RecipeError, match=r"^merge\.kept: .*'keep'"):
        merge(berts[:2], out=tmp_path / "wrong", kept=0.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": [0.5]}, "1 weight for 2 models"),
        ({"strategy": "liner"}, r"^merge\.strategy: .*'linear'"),
    ],
)
def test_a_wrong_merge_is_refused_before_any_work(
    berts: list[Path], tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        merge(berts[:2], out=tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_not_merged_into(berts: list[Path], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RecipeError, match="exists already"):
        merge(berts[:2], out=tmp_path)


def test_a_merge_of_another_tool_is_named_by_its_file(berts: list[Path], tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    models = [{"model": str(bert), "parameters": {"weight": 1}} for bert in berts[:2]]
    config.write_text(json.dumps({"merge_method": "linear", "models": models, "dtype": "float32"}))
    merged = merge(config, out=tmp_path / "merged", quiet=True)
    assert (merged.path / "model.safetensors").is_file()
    with pytest.raises(RecipeError, match="leave out strategy"):
        merge(config, strategy="linear", out=tmp_path / "again")
