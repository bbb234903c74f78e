"""Weights of model folders are found in every layout, and refused if they cannot be merged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError
from emberge.model_folder import Checkpoint
from safetensors.torch import load_file, save_file

from tests.support.json_files import changing


def test_specs_come_from_headers_alone(bert: Path) -> None:
    specs = Checkpoint(bert).specs
    expected = load_file(bert / "model.safetensors")
    assert {n: s.shape for n, s in specs.items()} == {
        n: tuple(t.shape) for n, t in expected.items()
    }
    assert all(s.dtype == "float32" and s.nbytes == 4 * s.elements for s in specs.values())


def test_reading_specs_loads_no_torch(bert: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from emberge.model_folder import Checkpoint; "
        "from emberge.merging import MergeInput, MergeRequest, plan_merge; "
        "from emberge_merge.methods.weighted_sums import Linear; "
        f"folder = Path({str(bert)!r}); Checkpoint(folder).specs; "
        "plan = plan_merge(MergeRequest(inputs=(MergeInput('a', folder),), strategy=(Linear(),))); "
        "assert plan.merged and not plan.problems; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("encoder.layer.0.qweight", torch.int32),
        ("encoder.layer.0.weight.quant_state.bitsandbytes__nf4", torch.uint8),
        ("encoder.layer.0.weight", torch.float8_e4m3fn),
    ],
)
def test_quantised_weights_are_refused_by_name(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    save_file({name: torch.ones(8).to(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"quantised \('{name}' of .*; get the model in"):
        dict(Checkpoint(tmp_path).specs)


def test_a_config_of_quantised_weights_is_refused_by_its_method(tmp_path: Path) -> None:
    save_file({"w": torch.ones(8)}, tmp_path / "model.safetensors")
    for method in ("gptq", "fp8"):
        config = {"model_type": "bert", "quantization_config": {"quant_method": method}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=rf"quantised \({method}\)"):
            dict(Checkpoint(tmp_path).specs)


def test_a_truncated_file_is_refused(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "model")
    whole = (folder / "model.safetensors").read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        (folder / "model.safetensors").write_bytes(whole[:length])
        said = r"model\.safetensors: .*get the file again"
        with pytest.raises(CheckpointError, match=said) as caught:
            dict(Checkpoint(folder).specs)
        assert "\n" not in str(caught.value)


def test_missing_and_pickled_weights_are_refused_with_a_remedy(tmp_path: Path) -> None:
    assert not Checkpoint(tmp_path).has_weights
    with pytest.raises(CheckpointError, match="is this a model folder"):
        dict(Checkpoint(tmp_path).specs)
    with pytest.raises(CheckpointError, match="there is no such model folder"):
        Checkpoint(tmp_path / "nowhere")
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(CheckpointError, match=f"emberge safetensors {tmp_path}"):
        dict(Checkpoint(tmp_path).specs)


def index(folder: Path, weights: Any) -> None:
    content = {"weight_map": weights} if not isinstance(weights, str) else weights
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def test_specs_come_from_all_shards_and_through_links(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "model-00002-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index(tmp_path, names)
    assert {n: s.file.name for n, s in Checkpoint(tmp_path).specs.items()} == names
    model = tmp_path / "models--me--model"
    (model / "blobs").mkdir(parents=True)
    (model / "snapshots" / "main").mkdir(parents=True)
    save_file({"a": torch.ones(2)}, model / "blobs" / "0f3a")
    os.symlink("../../blobs/0f3a", model / "snapshots" / "main" / "model.safetensors")
    assert list(Checkpoint(model / "snapshots" / "main").specs) == ["a"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": "gone.safetensors"}, "'gone.safetensors', which is missing; get it"),
        ({"b": "shard.safetensors"}, "names the tensor 'b', which no file has"),
        ({"a": "model.safetensors.index.json"}, "no safetensors file"),
        ({"a": "../x.safetensors"}, "outside the model folder; get it again"),
        ({"a": "/tmp/x.safetensors"}, r"index\.json: names .* outside the model folder"),
        ({"a": "a\\..\\x.safetensors"}, "outside the model folder"),
        ("text", "no weight_map"),
    ],
)
def test_an_index_with_a_path_outside_the_folder_or_without_a_file_is_refused(
    weights: Any, message: str, tmp_path: Path
) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "shard.safetensors")
    index(tmp_path, weights)
    with pytest.raises(CheckpointError, match=message):
        dict(Checkpoint(tmp_path).specs)


def with_dense(bert: Path, folder: Path) -> Path:
    """A copy of a model with one module more, whose folder is empty."""
    shutil.copytree(bert, folder)
    with changing(folder / "modules.json") as modules:
        dense = "sentence_transformers.models.Dense"
        modules.append({"idx": 3, "name": "3", "path": "3_Dense", "type": dense})
    (folder / "3_Dense").mkdir()
    return folder


def test_a_tensor_in_two_files_is_refused(bert: Path, tmp_path: Path) -> None:
    folder = with_dense(bert, tmp_path / "model")
    save_file({"w": torch.ones(4)}, folder / "3_Dense" / "model.safetensors")
    save_file({"3_Dense.w": torch.ones(4)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"tensor '3_Dense\.w' is also in"):
        dict(Checkpoint(folder).specs)


def test_tensors_of_a_dense_module_are_read_and_its_pickle_is_refused(
    bert: Path, tmp_path: Path
) -> None:
    folder = with_dense(bert, tmp_path / "model")
    save_file({"linear.weight": torch.ones(4, 32)}, folder / "3_Dense" / "model.safetensors")
    checkpoint = Checkpoint(folder)
    assert checkpoint.specs["3_Dense.linear.weight"].shape == (4, 32)
    assert checkpoint.folder_by_prefix == {"": "", "3_Dense.": "3_Dense"}
    (folder / "3_Dense" / "model.safetensors").rename(folder / "3_Dense" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="emberge safetensors"):
        dict(Checkpoint(folder).specs)
