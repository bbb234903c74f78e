"""Experts that are stacked in one tensor are copied in small pieces, however large one of them is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emberge.merging import CopyJob
from emberge.model_folder import Checkpoint
from emberge.tensor_files import FileSource, TensorReader, TensorSpec
from emberge_moe.upcycle.expert_tensors import Joined
from safetensors.torch import load_file

from tests.support.routable import dense


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_row_is_one_of_a_matrix_and_not_an_expert(step: int, tmp_path: Path) -> None:
    specs = Checkpoint(dense(tmp_path / "dense", "granite")).specs
    names = [
        f"layers.{layer}.mlp.{part}_proj.weight" for layer in range(3) for part in ("gate", "up")
    ]
    height, width = specs[names[0]].shape
    shape = (3, 2 * height, width)
    joined = Joined("stacked", shape, "float32", parts=tuple(specs[name] for name in names))
    tensors = load_file(tmp_path / "dense" / "model.safetensors")
    with TensorReader() as reader:
        job = CopyJob(TensorSpec("stacked", shape, "float32"), FileSource("m", joined, reader))
        assert job.grid == (6 * height, width)
        assert job.row_bytes <= 32 * width
        rows = job.grid[0]
        pieces = [
            job.produce(range(start, min(rows, start + step)), (), "cpu").clone()
            for start in range(0, rows, step)
        ]
    found = torch.cat(pieces).view(shape)
    assert torch.equal(found, torch.cat([tensors[name] for name in names]).view(shape))
