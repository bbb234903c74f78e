"""Whole folders: complete outputs and honest errors."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from emberge import Machine, PerModel, PerTensor
from emberge.merging import MergeInput, MergeRequest, Rule, plan_merge
from emberge.merging.run_plan import _hash_request
from emberge.model_folder import Checkpoint
from emberge_merge import Linear, MultiSlerp, SignConsensus, TaskArithmetic, Trim
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.support import tiny
from tests.support.merges import merge_models
from tests.support.tolerance import assert_combined
from tests.support.whole import files

TIES = [Trim(), SignConsensus()]


def inputs(folders: list[Path], *weights: float) -> list[MergeInput]:
    given = weights or [1.0] * len(folders)
    return [MergeInput(f.name, f, PerTensor(w)) for f, w in zip(folders, given, strict=True)]


def test_workers_and_memory_change_no_byte_of_a_merge(
    berts: list[Path], bert: Path, tmp_path: Path
) -> None:
    found = []
    for number, machine in enumerate(
        [Machine(), Machine(workers=3), Machine(workers=2, memory=20_000)]
    ):
        out = tmp_path / str(number)
        merge_models(
            inputs(berts),
            strategy=TIES,
            base=MergeInput("base", bert),
            rules=[Rule(filter="LayerNorm", strategy=(MultiSlerp(),))],
            out=out,
            machine=machine,
        )
        found.append(files(out))
    assert found[0] == found[1] == found[2]


def test_a_killed_merge_is_not_continued_with_another_template(
    berts: list[Path], bert: Path, tmp_path: Path
) -> None:
    template = shutil.copytree(bert, tmp_path / "template")
    request = MergeRequest(inputs=(*inputs(berts),), strategy=(Linear(),), template=template)
    before = _hash_request(plan_merge(request), {})
    os.utime(template / "model.safetensors", (0, 0))
    assert _hash_request(plan_merge(request), {}) != before


def test_shards_hold_the_same_tensors(berts: list[Path], tmp_path: Path) -> None:
    for name, size in (("one", 10**9), ("many", 30_000)):
        merge_models(
            inputs(berts), strategy=[MultiSlerp()], out=tmp_path / name, max_shard_size=size
        )
    whole = load_file(tmp_path / "one" / "model.safetensors")
    specs = Checkpoint(tmp_path / "many").specs
    assert len({s.file for s in specs.values()}) > 3
    assert whole.keys() == specs.keys()
    for spec in specs.values():
        assert torch.equal(load_file(spec.file)[spec.name], whole[spec.name])


def test_sharded_inputs_of_any_dtype_merge(tmp_path: Path) -> None:
    base = tiny.checkpoint(tmp_path / "base", "qwen3")
    folders = [
        tiny.checkpoint(
            tmp_path / dtype, "qwen3", seed=i, like=base, dtype=dtype, max_shard_size="40KB"
        )
        for i, dtype in enumerate(["bfloat16", "float16", "float32"])
    ]
    merge_models(inputs(folders), strategy=[Linear()], out=tmp_path / "out")
    states = [{n: load_file(s.file)[n] for n, s in Checkpoint(f).specs.items()} for f in folders]
    for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items():
        assert tensor.dtype == torch.bfloat16, "the template's dtype is kept"
        assert_combined(tensor, [s[name] for s in states], [1 / 3] * 3)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"


def test_headers_name_the_models_and_the_method(
    bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    merge_models(
        [MergeInput("a", berts[0], PerTensor(3.0), fingerprint="abc"), MergeInput("b", berts[1])],
        strategy=[Trim(density=PerModel(0.3)), SignConsensus()],
        base=MergeInput("base", bert, fingerprint="def"),
        rules=[Rule(filter="LayerNorm", strategy=(Linear(),))],
        out=tmp_path / "out",
        seed=7,
        provenance={"note": "mine", "numbers": [1, 2], "emberge": {"recipe": "0123"}},
    )
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata.keys() == {"format", "note", "numbers", "emberge"}
    assert (metadata["note"], metadata["numbers"]) == ("mine", "[1, 2]")
    said = json.loads(metadata["emberge"])
    consensus = {"elect": "weighted", "consensus_mean": "weighted"}
    assert said["strategy"] == [
        {"trim": {"density": 0.3}},
        {"sign_consensus": {"normalize": True, "scale": 1.0, **consensus}},
    ]
    assert said["rules"] == {"LayerNorm": [{"linear": {"normalize": True}}]}
    assert said["base"] == {"name": "base", "content": "def"}
    assert said["models"]["a"]["content"] == "abc"
    assert said["models"]["a"]["weight"] > said["models"]["b"]["weight"] > 0.25
    assert (said["seed"], said["dtype"], said["recipe"]) == (7, "float32", "0123")
    assert said["versions"].keys() >= {"emberge", "torch"}


def test_a_lost_empty_module_folder_is_made_again(berts: list[Path], tmp_path: Path) -> None:
    one = shutil.copytree(berts[0], tmp_path / "one")
    shutil.rmtree(one / "2_Normalize")
    merge_models(inputs([one, berts[1]]), strategy=[Linear()], out=tmp_path / "out")
    assert (tmp_path / "out" / "2_Normalize").is_dir()


def test_a_rule_decides_about_the_tensors_that_it_matches(
    berts: list[Path], bert: Path, tmp_path: Path
) -> None:
    merge_models(
        inputs(berts),
        strategy=[TaskArithmetic(scale=PerTensor(0.0))],
        base=MergeInput("base", bert),
        rules=[Rule(filter="LayerNorm", strategy=(Linear(),))],
        out=tmp_path / "out",
    )
    base, found, *states = (
        load_file(f / "model.safetensors") for f in (bert, tmp_path / "out", *berts)
    )
    for name, tensor in found.items():
        if "LayerNorm" in name:
            assert_combined(tensor, [s[name] for s in states], [1 / 3] * 3)
        else:
            assert torch.equal(tensor, base[name])


def test_directions_that_cancel_are_reported(tmp_path: Path) -> None:
    folders = []
    for name, sign in (("a", 1.0), ("b", -1.0)):
        (tmp_path / name).mkdir()
        tensors = {"w": torch.tensor([1.0, 2.0]) * sign, "v": torch.ones(2)}
        save_file(tensors, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text('{"model_type": "acme"}')
        folders.append(tmp_path / name)
    report = merge_models(inputs(folders), strategy=[MultiSlerp()], out=tmp_path / "out")
    assert report.warnings[-1] == "w: directions cancel out; the weighted mean was taken"
    assert load_file(tmp_path / "out" / "model.safetensors")["w"].tolist() == [0, 0]
