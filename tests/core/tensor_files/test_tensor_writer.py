"""Files written in pieces of any size and order equal those that safetensors writes at once."""

from __future__ import annotations

import fcntl
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge.hashes import HashCache, noting_hashes
from emberge.tensor_files import TensorSpec, TensorWriter, tensor_writer
from emberge.tensor_files.write_queue import BUFFER_COUNT, PAGE_BYTES
from safetensors.torch import save_file
from torch import Tensor

# Tensors without a byte, of a few, of a page and some more, and of many, at odd places.
SHAPES = {
    "a": (3, 5),
    "b": (0, 4),
    "c": (),
    "d": (PAGE_BYTES // 4 + 1,),
    "e": (301, 77),
    "f": (1,),
    "g": (40, 1000),
}


@pytest.fixture(autouse=True, params=["direct", "cached"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way that tensors go, however small they are."""
    monkeypatch.setattr(tensor_writer, "DIRECT_BYTES", 0 if request.param == "direct" else 1 << 40)
    return str(request.param)


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def writer_of(folder: Path, tensors: dict[str, Tensor], **options: Any) -> TensorWriter:
    specs = [TensorSpec(name, tuple(one.shape), "float32") for name, one in tensors.items()]
    return TensorWriter(folder, specs, {}, **options)


def pieces(tensors: dict[str, Tensor], size: int) -> Iterator[tuple[str, int, Tensor]]:
    for name, tensor in tensors.items():
        flat = tensor.reshape(-1)
        for start in range(0, flat.numel(), size):
            yield name, start, flat[start : start + size]


def write(writer: TensorWriter, some: list[tuple[str, int, Tensor]]) -> None:
    for name, start, piece in some:
        writer.write(name, start, piece)


@pytest.mark.parametrize("size", [1, 333, PAGE_BYTES // 4, 1 << 20])
def test_pieces_of_any_size_in_any_order_make_the_same_file(
    size: int, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    some = {n: t for n, t in tensors.items() if size > 1 or t.numel() < 2000}
    save_file(some, tmp_path / "expected", metadata={"format": "pt"})
    order = list(pieces(some, size))
    random.Random(size).shuffle(order)
    writer = writer_of(tmp_path, some)
    writer.begin(BUFFER_COUNT * PAGE_BYTES)
    write(writer, order)
    writer.finish()
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "expected").read_bytes()


@pytest.mark.parametrize("limit", [10**9, 50_000])
def test_threads_write_the_same_and_hashes_are_taken_on_the_way(
    limit: int, tensors: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one file and in several; nothing is read at the end."""
    monkeypatch.setattr(tensor_writer, "HASHED_BYTES", 0)
    hashes = HashCache()
    with noting_hashes(hashes):
        writer = writer_of(tmp_path, tensors, max_shard_size=limit)
        writer.begin(BUFFER_COUNT * PAGE_BYTES)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda one: writer.write(*one), list(pieces(tensors, 700))))
        writer.finish()
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == (1 if limit > 10**6 else 4)
    expected = [HashCache().of(file) for file in files]
    monkeypatch.setattr("emberge.hashes.hash_file", None)  # would be needed to read a file
    assert [hashes.of(file) for file in files] == expected


def test_a_continued_file_is_hashed_with_what_it_had(
    tensors: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_writer, "HASHED_BYTES", 0)
    some = list(pieces(tensors, 700))
    first = writer_of(tmp_path, tensors)
    first.begin()
    write(first, some[::2])
    first.close()
    hashes = HashCache()
    with noting_hashes(hashes):
        second = writer_of(tmp_path, tensors)
        assert second.resumed
        second.begin()
        write(second, some[1::2])
        second.finish()
    path = tmp_path / "model.safetensors"
    save_file(tensors, tmp_path / "expected", metadata={"format": "pt"})
    assert path.read_bytes() == (tmp_path / "expected").read_bytes()
    expected = HashCache().of(path)
    monkeypatch.setattr("emberge.hashes.hash_file", None)  # would be needed to read the file
    assert hashes.of(path) == expected


def test_only_large_tensors_are_written_with_direct_io(
    way: str, tensors: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = []
    real = os.pwrite

    def pwrite(handle: int, data: Any, place: int) -> int:
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT:
            direct.append(len(data))
        return real(handle, data, place)

    monkeypatch.setattr(os, "pwrite", pwrite)
    writer = writer_of(tmp_path, tensors)
    writer.begin()
    write(writer, list(pieces(tensors, 1 << 20)))
    takes_direct = all(file.is_direct for file in writer._files)
    writer.finish()
    if way == "direct" and not takes_direct:
        pytest.skip("the file system of the temporary folder takes no direct writes")
    whole = sum(tensor.nbytes for tensor in tensors.values())
    assert whole - 14 * PAGE_BYTES < sum(direct) <= whole if way == "direct" else not direct


def test_work_after_writes_runs_when_the_bytes_are_in_the_file(
    tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    """Also when the disk is slow, and other tensors come meanwhile."""
    writer = writer_of(tmp_path, tensors)
    writer.begin()
    seen: dict[str, bool] = {}
    gate = threading.Event()
    writer.run_after_writes(lambda: (gate.wait(), None)[1])
    path = tmp_path / "model.safetensors"
    for name, tensor in tensors.items():
        raw = tensor.numpy().tobytes()
        writer.write(name, 0, tensor)
        writer.run_after_writes(
            partial(lambda name, raw: seen.update({name: raw in path.read_bytes()}), name, raw)
        )
    assert not seen
    gate.set()
    writer.finish()
    assert seen == dict.fromkeys(tensors, True)
