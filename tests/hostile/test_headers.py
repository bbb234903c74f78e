"""Headers of safetensors files and indexes of shards that no writer makes: each refused in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError
from emberge.model_folder import Checkpoint

EMPTY = '"dtype":"F32","shape":[0],"data_offsets":[0,0]'


def weights(folder: Path, header: str, data: int = 0, name: str = "model.safetensors") -> Path:
    """A folder with a file of this header, and so many bytes of tensors."""
    raw = header.encode()
    (folder / name).write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(data))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({"a": entry(shape=[-2], offsets=[0, 8])}, "tensor 'a'"),
        ({"a": entry(shape=[2**40, 2**40], offsets=[0, 8])}, "tensor 'a'"),
        ({"a": entry(shape=[2**62, 4], offsets=[0, 0])}, "tensor 'a'"),
        ({"a": entry(shape=[2.0])}, "tensor 'a'"),
        ({"a": entry(shape=[True, 2])}, "tensor 'a'"),
        ({"a": entry(offsets=[8, 0])}, "tensor 'a'"),
        ({"a": entry(offsets=[-8, 0])}, "tensor 'a'"),
        ({"a": entry(offsets=[8, 16])}, "tensor 'a'"),
        (
            {"a": entry(offsets=[0, 8]), "b": entry(shape=[1], offsets=[4, 8])},
            "tensors 'a' and 'b'",
        ),
        ({"a": entry(offsets=[0, 8]), "b": entry(offsets=[0, 8])}, "tensors 'a' and 'b'"),
        ({"a": entry(dtype="F33")}, "element type 'F33'"),
        ({"a": entry(dtype="F4", shape=[16])}, "element type 'F4'"),
        ({"a\x1b[31m": entry()}, r"tensor 'a.\[31m'"),
        ({"a": entry(), "__metadata__": {"emberge": 3}}, "__metadata__"),
    ],
)
def test_a_header_that_claims_what_cannot_be_is_refused(
    tmp_path: Path, tensors: dict[str, Any], named: str
) -> None:
    weights(tmp_path, json.dumps(tensors), data=8)
    with pytest.raises(CheckpointError, match=named) as caught:
        _ = Checkpoint(tmp_path).specs
    assert "model.safetensors" in str(caught.value)


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    one = json.dumps(entry())
    weights(tmp_path, f'{{"a":{one},"a":{one}}}', data=8)
    with pytest.raises(CheckpointError, match="'a' twice"):
        _ = Checkpoint(tmp_path).specs


@pytest.mark.parametrize(
    "shard",
    [
        "../x.safetensors",
        "/tmp/x.safetensors",
        "a/../../x.safetensors",
        "a\\..\\x.safetensors",
        "..",
    ],
)
def test_an_index_names_files_of_its_folder_alone(tmp_path: Path, shard: str) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    weights(tmp_path, f'{{"a":{{{EMPTY}}}}}', name="x.safetensors")
    (inside / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(CheckpointError, match=r"index\.json: names .* outside the model folder"):
        _ = Checkpoint(inside).specs


def test_an_index_that_is_wrong_about_a_tensor_is_refused(tmp_path: Path) -> None:
    weights(tmp_path, f'{{"a":{{{EMPTY}}}}}', name="x.safetensors")
    weights(tmp_path, f'{{"b":{{{EMPTY}}}}}', name="y.safetensors")
    content = {"weight_map": {"a": "y.safetensors", "b": "x.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"places tensor 'a' in 'y\.safetensors'"):
        _ = Checkpoint(tmp_path).specs


def test_a_pipe_in_the_place_of_weights_keeps_nothing_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a regular file"):
        _ = Checkpoint(tmp_path).specs
