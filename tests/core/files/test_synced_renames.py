"""A power cut leaves complete results: content is synced, renamed, and then the name is synced."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
import torch
from emberge import DataEntry, DataRef, Machine, Model, ModelRef, TaskInfo, TaskScore, run_recipe
from emberge.data import load_datasets
from emberge.files import replace_folder
from emberge.merging import MergeInput, Statistics
from emberge.training import TrainingState
from emberge_data import JsonLines
from emberge_evaluate.scoring import write_score
from emberge_hub import convert_pickles
from emberge_merge import Linear
from safetensors.torch import save_file

from tests.support.merges import merge_models
from tests.support.steps import Write, recipe, toy


@dataclass
class Renames:
    """Renamed files and folders that a power cut could leave without content, or without the name."""

    unsynced: set[str] = field(default_factory=set)
    unnamed: dict[Path, int] = field(default_factory=dict)
    """Inode of the folder, by the name in it."""
    synced: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Time and size of each synced file, by its inode."""

    def note_sync(self, handle: int) -> None:
        """Note that a file or a folder is on the disk now."""
        status = os.fstat(handle)
        self.synced[status.st_ino] = (status.st_mtime_ns, status.st_size)
        self.unnamed = {path: at for path, at in self.unnamed.items() if at != status.st_ino}

    def note_rename(self, source: Path, target: Path) -> None:
        """Note a rename that is about to happen."""
        self.unnamed[target] = target.parent.stat().st_ino
        for path in source.rglob("*") if source.is_dir() else [source]:
            status = path.lstat()
            state = (status.st_mtime_ns, status.st_size)
            if not path.is_symlink() and path.is_file() and self.synced.get(status.st_ino) != state:
                self.unsynced.add(target.name)


@contextmanager
def renames_watched() -> Iterator[Renames]:
    """Watch the renames and the syncs of this process."""
    renames, real = (
        Renames(),
        {name: getattr(os, name) for name in ("fsync", "fdatasync", "replace")},
    )

    def sync(handle: int) -> None:
        real["fsync"](handle)
        renames.note_sync(handle)

    def replace(source: str | Path, target: str | Path) -> None:
        renames.note_rename(Path(source), Path(target))
        real["replace"](source, target)

    with mock.patch.multiple(os, fsync=sync, fdatasync=sync, replace=replace):
        yield renames


def run(disk: Path) -> None:
    steps = {"a": Write(word="A"), "b": Write(word="B", of=(ModelRef("$a"),))}
    run_recipe(recipe(**steps), disk / "out", toy(), machine=Machine(workers=1), quiet=True)


def merge(disk: Path) -> None:
    for i in (0, 1):
        (disk / f"m{i}").mkdir()
        save_file({"w": torch.ones(64, 64)}, disk / f"m{i}" / "model.safetensors")
        (disk / f"m{i}" / "config.json").write_text('{"model_type": "layers"}')
    models = [MergeInput(f"m{i}", disk / f"m{i}") for i in (0, 1)]
    merge_models(models, strategy=[Linear()], out=disk / "out")


def keep_state(disk: Path) -> None:
    for step in (1, 2, 3):
        TrainingState(step, {"w": torch.ones(9)}, {"losses": [0.5]}).write(disk / "states")


def keep_rows(disk: Path) -> None:
    (disk / "rows.jsonl").write_text('{"query": "a", "pos": ["b"]}\n')
    load_datasets(
        [DataEntry(path=DataRef("rows.jsonl"))],
        readers=[JsonLines()],
        resolve=lambda reference: disk / reference.text,
        store=disk / "store",
    )


def keep_statistics(disk: Path) -> None:
    Statistics({"layer": {"m": torch.arange(5.0)}}, measure="fisher").write(disk)


def keep_score(disk: Path) -> None:
    task = TaskInfo("task", "retrieval", "ndcg", fingerprint="t")
    write_score(disk / "scores" / "m.json", Model("m", disk, "f"), TaskScore(task, 0.5, None, {}))


def convert(disk: Path) -> None:
    for i in (1, 2):
        torch.save({f"w{i}": torch.ones(3)}, disk / f"pytorch_model-0000{i}-of-00002.bin")
    files = {f"w{i}": f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)}
    (disk / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    convert_pickles(disk)


def fill(disk: Path) -> None:
    replace_folder(disk / "filled", lambda side: (side / "x").touch())


@pytest.mark.parametrize(
    ("work", "costs_time"),
    [
        (run, {".status.json", "progress.json", "hashes.json"}),
        (merge, set()),
        (keep_state, set()),
        (keep_rows, {"summary.json"}),
        (keep_statistics, set()),
        (keep_score, set()),
        (convert, set()),
        (fill, set()),
    ],
)
def test_every_publishing_syncs_then_renames_then_syncs_the_name(
    work: Callable[[Path], None], costs_time: set[str], tmp_path: Path
) -> None:
    """`costs_time`: what the loss of costs time only, or is published with its folder."""
    with renames_watched() as renames:
        work(tmp_path)
    assert renames.synced
    assert renames.unsynced <= costs_time
    assert {path.name for path in renames.unnamed} <= costs_time
