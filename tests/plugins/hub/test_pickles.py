"""Pickled weights become safetensors, and code in a pickle is not run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from emberge import CheckpointError
from emberge.model_folder import Checkpoint
from emberge_hub import convert_pickles
from safetensors.torch import load_file

from tests.support.peft_adapters import save_adapter


@pytest.fixture
def pickled(bert: Path, tmp_path: Path) -> Path:
    """The tiny BERT with its weights in two pickles and an index."""
    folder = shutil.copytree(bert, tmp_path / "old")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    halves = [dict(list(weights.items())[part::2]) for part in (0, 1)]
    names = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    for half, name in zip(halves, names, strict=True):
        torch.save(half, folder / name)
    places = {t: name for half, name in zip(halves, names, strict=True) for t in half}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


def test_converted_weights_equal_the_pickled_ones(bert: Path, pickled: Path) -> None:
    with pytest.raises(CheckpointError, match="emberge safetensors"):
        _ = Checkpoint(pickled).specs
    written = convert_pickles(pickled)
    assert [path.name for path in written] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    expected = load_file(bert / "model.safetensors")
    found = {k: v for path in written[:2] for k, v in load_file(path).items()}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert set(Checkpoint(pickled).specs) == set(Checkpoint(bert).specs)


def test_modules_are_converted_and_tied_tensors_are_written_in_full(tmp_path: Path) -> None:
    (tmp_path / "2_Dense").mkdir()
    table = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": table, "b": table, "c": table.T}, tmp_path / "2_Dense" / "pytorch_model.bin")
    (written,) = convert_pickles(tmp_path)
    found = load_file(written)
    assert torch.equal(found["a"], table)
    assert torch.equal(found["b"], table)
    assert torch.equal(found["c"], table.T)


def test_an_adapters_pickle_is_converted_beside_whole_weights(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "both")
    adapter = save_adapter(tmp_path / "adapter", bert)
    tensors = load_file(adapter / "adapter_model.safetensors")
    torch.save(tensors, folder / "adapter_model.bin")
    (written,) = convert_pickles(folder)
    assert written.name == "adapter_model.safetensors"
    found = load_file(written)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    with pytest.raises(CheckpointError, match="has no pickled weights"):
        convert_pickles(folder)


def test_folders_at_any_depth_are_converted(tmp_path: Path) -> None:
    inner = tmp_path / "0_Router" / "query_0_Dense"
    inner.mkdir(parents=True)
    torch.save({"a": torch.ones(2)}, inner / "pytorch_model.bin")
    torch.save({"state": 1}, tmp_path / "training_args.bin")
    assert convert_pickles(tmp_path) == [inner / "model.safetensors"]


class Evil:
    """Would make a file when it is opened as a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(tmp_path / "made")))
    with pytest.raises(CheckpointError, match="has more than weights"):
        convert_pickles(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["pytorch_model.bin"]


@pytest.mark.parametrize("content", [b"", b"\x80\x02K"])
def test_a_damaged_pickle_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: has more than weights, or is"):
        convert_pickles(tmp_path)


def test_a_folder_without_pickles_is_named(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no pickled weights"):
        convert_pickles(bert)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        convert_pickles(tmp_path / "none")
