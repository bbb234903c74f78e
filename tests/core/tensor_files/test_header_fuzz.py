"""Damaged and malicious weight files end in an error: nothing else, nowhere else, and at once."""

from __future__ import annotations

import json
import math
import os
import signal
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorReader, read_header
from emberge.tensor_files.safetensors_header import DTYPES
from safetensors import SafetensorError, deserialize
from safetensors.torch import save_file

from tests.support import mutated


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    def hangs(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def no_more_than(size: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def official(raw: bytes) -> dict[str, Any] | None:
    """What the reference implementation makes of a file; None when it refuses it."""
    try:
        return dict(deserialize(raw))
    except SafetensorError:
        return None


def refused_on_purpose(raw: bytes) -> bool:
    """Whether a file that the reference implementation takes has what we do not, as read_header says."""
    length = int.from_bytes(raw[:8], "little")
    twice = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        twice.append(len(dict(found)) < len(found))
        return dict(found)

    try:
        header = json.loads(raw[8 : 8 + length], object_pairs_hook=pairs)
    except RecursionError:
        return True
    header.pop("__metadata__", None)
    return any(twice) or any(_unwelcome(name, entry) for name, entry in header.items())


def _unwelcome(name: str, entry: Any) -> bool:
    if len(name) > 1000 or not name.isprintable() or not isinstance(entry, dict):
        return True
    shape, dtype = entry["shape"], entry["dtype"]
    small = isinstance(dtype, dict) or dtype in ("F4", "F6_E2M3", "F6_E3M2")
    odd = len(shape) > 64 or math.prod(max(1, n) for n in shape) >= 2**60
    return small or odd or json.dumps(entry).count("[") + json.dumps(entry).count("{") > 100


def shown(error: CheckpointError, path: Path) -> str:
    """The message, which has the file and the remedy."""
    said = str(error)
    assert said.startswith(str(path.parent))
    assert any(word in said for word in ("get it", "get the file", "get both", "convert", "rename"))
    return said


def judge(number: int, folder: Path, reader: TensorReader) -> str:
    """Hold one mutated file to everything; what became of it."""
    raw = mutated.weights(number)
    path = folder / f"{number % 100}.safetensors"
    path.write_bytes(raw)
    known = official(raw)
    said, specs = "", {}
    with no_longer_than(20), no_more_than(100 * len(raw) + 500_000):
        try:
            specs = read_header(path)[0]
        except CheckpointError as error:
            said = shown(error, path)
    if said:
        assert known is None or refused_on_purpose(raw), f"case {number}: {said}"
        return "refused" if known is None else "refused on purpose"
    assert known is not None, f"case {number} is taken, but not by safetensors"
    assert specs.keys() == known.keys()
    for name, spec in specs.items():
        assert list(spec.shape) == known[name]["shape"]
        assert spec.dtype == DTYPES[known[name]["dtype"]][0]
        assert 8 <= spec.offset <= spec.offset + spec.nbytes <= len(raw)
        found = bytearray(spec.nbytes)
        reader.read_bytes(spec, 0, memoryview(found))
        assert bytes(found) == bytes(known[name]["data"])
    return "taken"


def judged(numbers: range, folder: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for start in range(numbers.start, numbers.stop, 100):
        with TensorReader() as reader:  # which holds files open
            for number in range(start, min(start + 100, numbers.stop)):
                found[judge(number, folder, reader)] += 1
    return found


def test_mutated_files_are_read_as_safetensors_reads_them_or_refused(tmp_path: Path) -> None:
    found = judged(range(400), tmp_path)
    assert found["taken"] > 40
    assert found["refused"] > 200
    assert found["refused on purpose"] > 1


@pytest.mark.slow
def test_ten_thousand_mutated_files(tmp_path: Path) -> None:
    found = judged(range(10_000), tmp_path)
    print(found)
    assert sum(found.values()) == 10_000


@pytest.fixture
def sharded(tmp_path: Path) -> tuple[Path, dict[str, Any], Path]:
    """A folder of two shards beside things that are none, its index, and a file outside of it."""
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    save_file({"a": torch.ones(2), "b": torch.ones(3)}, folder / "one.safetensors")
    save_file({"c": torch.ones(3)}, folder / "folder" / "two.safetensors")
    os.symlink("loop.safetensors", folder / "loop.safetensors")
    os.mkfifo(folder / "pipe")
    outside = tmp_path / "outside.safetensors"
    save_file({name: torch.zeros(3) for name in "abcw"}, outside)
    names = {"a": "one.safetensors", "b": "one.safetensors", "c": "folder/two.safetensors"}
    return folder, {"metadata": {"total_size": 32}, "weight_map": names}, outside


def judge_index(number: int, folder: Path, sound: dict[str, Any], outside: Path) -> str:
    path = folder / "model.safetensors.index.json"
    path.write_bytes(mutated.index(number, sound, str(outside)))
    try:
        with no_longer_than(20):
            specs = Checkpoint(folder).specs
    except CheckpointError as error:
        shown(error, path)
        return "refused"
    assert set(specs) <= {"a", "b", "c"}
    assert all(spec.file.resolve().is_relative_to(folder.resolve()) for spec in specs.values())
    return "taken"


def test_mutated_indices_never_lead_outside(sharded: tuple[Path, dict[str, Any], Path]) -> None:
    found = Counter(judge_index(number, *sharded) for number in range(300))
    assert found["taken"] > 20
    assert found["refused"] > 150


@pytest.mark.slow
def test_ten_thousand_mutated_indices(sharded: tuple[Path, dict[str, Any], Path]) -> None:
    found = Counter(judge_index(number, *sharded) for number in range(10_000))
    print(found)
    assert sum(found.values()) == 10_000
