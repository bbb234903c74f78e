"""Indexes of shards that no writer makes, and a pipe in the place of weights: each refused in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from emberge import CheckpointError
from emberge.model_folder import Checkpoint

EMPTY = '"dtype":"F32","shape":[0],"data_offsets":[0,0]'


def weights(folder: Path, header: str, name: str) -> Path:
    """A folder with a file of this header, and no bytes of tensors."""
    raw = header.encode()
    (folder / name).write_bytes(len(raw).to_bytes(8, "little") + raw)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/tmp/x.safetensors", "a\\..\\x.safetensors"]
)
def test_an_index_names_files_of_its_folder_alone(tmp_path: Path, shard: str) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    weights(tmp_path, f'{{"a":{{{EMPTY}}}}}', "x.safetensors")
    (inside / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(CheckpointError, match=r"index\.json: names .* outside the model folder"):
        _ = Checkpoint(inside).specs


def test_a_pipe_in_the_place_of_weights_keeps_nothing_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a regular file"):
        _ = Checkpoint(tmp_path).specs
