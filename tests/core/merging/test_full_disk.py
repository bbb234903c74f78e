"""A disk that is full, or fills up: said before the work where it can be known, else the work waits."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError, Machine
from emberge.cli.main import main
from emberge.errors import UnwrittenError
from emberge.files import working_in
from emberge.merging import MergeInput
from emberge_merge import Linear
from safetensors.torch import save_file

from tests.support.merges import merge_models
from tests.support.result_folders import contents

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> list[MergeInput]:
    """Two models of four megabytes in sixteen tensors."""
    root = tmp_path_factory.mktemp("large")
    for i in (0, 1):
        (root / f"m{i}").mkdir()
        torch.manual_seed(i)
        tensors = {f"layers.{n}.w": torch.randn(256, 256) for n in range(16)}
        save_file(tensors, root / f"m{i}" / "model.safetensors")
        (root / f"m{i}" / "config.json").write_text(json.dumps({"model_type": "layers"}))
    return [MergeInput(path.name, path) for path in sorted(root.iterdir())]


def merge(models: list[MergeInput], out: Path, **options: Any) -> int:
    """Merge on one thread; the number of pieces that were made."""
    pieces = []
    merge_models(
        models,
        strategy=[Linear()],
        out=out,
        machine=Machine(workers=1),
        progress=lambda *_: pieces.append(1),
        **options,
    )
    return len(pieces)


def free(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - room, room))


@contextmanager
def disk_full_after(writes: int) -> Iterator[None]:
    """Let the disk take so many writes of weights, and no more; what is done is noted at once."""
    real = os.pwrite
    calls = []

    def full(handle: int, data: Any, place: int) -> int:
        calls.append(1)
        if len(calls) > writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data, place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("emberge.merging.streaming.journal.SYNC_INTERVAL", 0.0)
        patch.setattr(os, "pwrite", full)
        yield


def test_free_space_is_checked_before_the_work(
    large: list[MergeInput], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 5 * MEGABYTE - 1)
    with pytest.raises(
        UnwrittenError, match=r"needs [45]\.\d+ MB of disk, and 5\.\d+ MB are free"
    ) as caught:
        merge(large, tmp_path / "out")
    assert caught.value.exit_code == 1
    assert not list(tmp_path.iterdir())
    free(monkeypatch, 5 * MEGABYTE + 100_000)
    merge(large, tmp_path / "out")


def test_bytes_of_a_killed_merge_need_no_space_again(
    large: list[MergeInput], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = merge(large, tmp_path / "whole")
    said = r"\.out\.partial: layers\.\d+\.w could not be written \(No space left on device\); make room and"
    with disk_full_after(12), pytest.raises(UnwrittenError, match=said) as caught:
        merge(large, tmp_path / "out")
    assert caught.value.exit_code == 1
    assert not (tmp_path / "out").exists()
    held = (tmp_path / ".out.partial" / "model.safetensors").stat().st_blocks * 512
    assert 2 * MEGABYTE < held < 4 * MEGABYTE
    free(monkeypatch, 5 * MEGABYTE - held - 1)
    with pytest.raises(CheckpointError, match="make room"):
        merge(large, tmp_path / "out")
    assert (tmp_path / ".out.partial").exists(), "what is done is kept"
    free(monkeypatch, 5 * MEGABYTE - held + 100_000)
    assert 0 < merge(large, tmp_path / "out") < everything, "what was done is not done again"
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_a_run_on_a_disk_that_fills_up_says_so_in_a_line_and_goes_on(
    large: list[MergeInput], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = {"merge": {"models": [str(m.folder) for m in large], "strategy": "linear"}}
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(json.dumps({"steps": {"soup": step}}))
    line = ["run", str(recipe), "--out", str(out), "--workers", "1", "--quiet"]
    with disk_full_after(12):
        assert main(line) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "(No space left on device); make room and run again" in said
    assert not (out / "soup").exists()
    assert len(list(out.glob(".work/*/**/journal.jsonl"))) == 1, "what is done is kept"
    assert main(line) == 0
    assert (out / "soup").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_cut_short_while_it_is_merged_is_named_with_its_tensor(
    workers: int, large: list[MergeInput], tmp_path: Path
) -> None:
    copied = [MergeInput(m.name, Path(shutil.copytree(m.folder, tmp_path / m.name))) for m in large]
    assert copied[1].folder is not None
    path = copied[1].folder / "model.safetensors"
    whole = path.read_bytes()

    def cut(*_: object) -> None:
        os.truncate(path, len(whole) // 4)

    out = tmp_path / "out"
    machine = Machine(workers=workers)
    with pytest.raises(CheckpointError) as caught:
        merge_models(copied, strategy=[Linear()], out=out, machine=machine, progress=cut)
    found = re.fullmatch(
        rf"{re.escape(str(path))}: ends inside tensor 'layers\.\d+\.w'; get the file again",
        str(caught.value),
    )
    assert found
    assert not out.exists()
    path.write_bytes(whole)
    merge(copied, out)
    merge(large, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


def test_a_side_folder_is_locked_against_other_processes(
    large: list[MergeInput], tmp_path: Path
) -> None:
    with (
        working_in(tmp_path / ".out.partial"),
        pytest.raises(CheckpointError, match=r"\.out\.partial: another process is at work"),
    ):
        merge(large, tmp_path / "out")
    merge(large, tmp_path / "out")
    with working_in(tmp_path / ".out.partial"):  # what was locked is published, under another name
        pass
