"""Embeddings of a composed model: each row is its owner's, wherever it is there."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorReader, TensorSpec
from emberge_bidirlm.owned_rows import OwnedRows
from safetensors.torch import save_file

# (model, row) of each row; -1 is no model's, and zero.
ROWS = [(0, 3), (0, 1), (0, 2), (1, 2), (-1, 0), (-1, 0), (0, 0), (1, 0), (1, 1), (1, 4), (0, 4)]


@pytest.fixture
def origins(tmp_path: Path) -> list[TensorSpec]:
    found = []
    for model in (0, 1):
        rows = torch.arange(5.0)[:, None] + torch.tensor([10.0 * model, 100.0 + model])
        (tmp_path / str(model)).mkdir()
        save_file({"w": rows}, tmp_path / str(model) / "model.safetensors")
        found.append(Checkpoint(tmp_path / str(model)).specs["w"])
    return found


def test_scattered_rows_are_each_their_owners(origins: list[TensorSpec]) -> None:
    owners, places = array("b", [m for m, _ in ROWS]), array("q", [r for _, r in ROWS])
    spec = OwnedRows(
        "w", (len(ROWS), 2), "float32", origins=tuple(origins), owners=owners, places=places
    )
    wanted = torch.tensor([[10.0 * m + r, 100.0 + m + r] if m >= 0 else [0, 0] for m, r in ROWS])
    with TensorReader() as reader:
        for start in range(len(ROWS)):
            for end in range(start + 1, len(ROWS) + 1):
                into = torch.full((2 * (end - start),), -1.0)
                reader.read(spec, 2 * start, into)
                assert torch.equal(into.view(-1, 2), wanted[start:end]), (start, end)
