"""Headers of weight files are checked against the files, and rows are read as the headers say."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError
from emberge.tensor_files import TensorReader, read_header
from safetensors.torch import save_file


def safetensors(path: Path, header: Any, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(start: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


BAD: dict[str, tuple[Any, bytes]] = {
    "no JSON": (b"{nonsense", b""),
    "outside": ({"w": entry(0, 400, [100])}, b"\0" * 40),
    "wrong size": ({"w": entry(0, 40, [11])}, b"\0" * 40),
    "shared": ({"a": entry(0, 8, [2]), "b": entry(4, 8, [1])}, b"\0" * 8),
    "metadata of no text": ({"__metadata__": {"emberge": 3}}, b""),
    "deep": (b'{"w":' + b"[" * 10**5, b""),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_header_is_refused(case: str, tmp_path: Path) -> None:
    path = safetensors(tmp_path / "model.safetensors", *BAD[case])
    said = r"is truncated or no safetensors file \(.*\); get the file again"
    with pytest.raises(CheckpointError, match=said) as caught:
        read_header(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "dtype", "said"),
    [
        ("\x1b[2J", "F32", "has a name that cannot be shown; rename"),
        ("w", "F4", "an unknown element type 'F4'; convert"),
    ],
)
def test_an_unknown_element_type_or_an_unprintable_name_is_refused(
    name: str, dtype: str, said: str, tmp_path: Path
) -> None:
    path = safetensors(tmp_path / "model.safetensors", {name: entry(0, 4, [8], dtype)}, b"\0" * 4)
    if dtype == "F32":
        path = safetensors(path, {name: entry(0, 4, [1])}, b"\0" * 4)
    with pytest.raises(CheckpointError, match=said):
        read_header(path)


def test_an_unreadable_weight_file_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    os.mkfifo(tmp_path / "pipe.safetensors")
    os.symlink("loop.safetensors", tmp_path / "loop.safetensors")
    for name in ("folder", "pipe", "loop", "gone", "nul\0", "long" * 100):
        with pytest.raises(CheckpointError, match=r"not a regular file|cannot be (opened|read)"):
            read_header(tmp_path / f"{name}.safetensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_are_read_in_the_stored_or_the_requested_dtype(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    tensor = torch.randn(7, 5).to(dtype)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    spec = read_header(tmp_path / "model.safetensors")[0]["w"]
    with TensorReader() as reader:
        for into in (torch.empty(10), torch.empty(10, dtype=torch.float64)):
            reader.read(spec, 5, into)
            assert torch.equal(into, tensor[1:3].reshape(-1).to(into.dtype))


def test_a_file_that_ends_inside_a_tensor_is_an_error(tmp_path: Path) -> None:
    save_file({"w": torch.ones(100)}, tmp_path / "model.safetensors")
    spec = read_header(tmp_path / "model.safetensors")[0]["w"]
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-8])
    with TensorReader() as reader, pytest.raises(CheckpointError, match="ends inside tensor 'w'"):
        reader.read(spec, 0, torch.empty(100))
