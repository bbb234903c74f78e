"""What is kept for later is whole after a power cut, or made again: rows, numbers, scores, converted weights.

What a power cut may leave is described in `tests/support/power_cuts.py`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError, DataEntry, DataRef, Model, TaskInfo, TaskScore
from emberge.data import load_datasets
from emberge.evaluating.scoring import ScoreStore
from emberge.merging import Statistics
from emberge.merging.statistics_file import read_statistics
from emberge.tensor_files import convert_pickles
from emberge_data import JsonLines
from safetensors.torch import load_file

from tests.support.disk_recorder import DiskRecorder, syncs_skipped


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with syncs_skipped():
        yield


def rows(disk: Path) -> list[Any]:
    """Rows of a file that are read once and then found in a store."""
    source = disk.parent / "rows.jsonl"
    if not source.exists():
        lines = [{"query": f"q{i}", "pos": [f"positive {i}" * 9]} for i in range(30)]
        source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (dataset,) = load_datasets(
        [DataEntry(path=DataRef(str(source)))],
        readers=[JsonLines()],
        resolve=lambda reference: Path(reference.text),
        store=disk,
    )
    return [dataset[row] for row in range(len(dataset))]


def statistics(disk: Path) -> list[float]:
    """Numbers that a step measures, unless its work has them."""
    if not list(disk.glob("*.safetensors")):
        Statistics({"layer": {"m": torch.arange(500.0)}}, measure="fisher").write(disk)
    found = read_statistics(disk).values["layer"]["m"]
    assert isinstance(found, torch.Tensor)
    return list(found.tolist())


def scores(disk: Path) -> float:
    """A score that is computed, unless the store has it."""
    model = Model("m", disk, "f" * 32)
    task = TaskInfo("task", "retrieval", "ndcg", fingerprint="t" * 32)
    store = ScoreStore(disk / "scores")
    if store.read(model, task) is None:
        store.write(model, TaskScore(task, 0.5, None, {"per query": [0.25] * 400}))
    found = store.read(model, task)
    assert found is not None
    return float(found.score)


def converted(disk: Path) -> dict[str, list[float]]:
    """Weights of two pickles, converted unless they are already."""
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    with contextlib.suppress(CheckpointError):  # all is converted
        convert_pickles(disk)
    index = json.loads((disk / "model.safetensors.index.json").read_text())
    files = {name: load_file(disk / file) for name, file in index["weight_map"].items()}
    assert len(files) == len(names)
    return {name: tensors[name].tolist() for name, tensors in files.items()}


def pickles(disk: Path) -> None:
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    for value, name in enumerate(names):
        torch.save({f"w{value}": torch.full((300,), float(value))}, disk / name)
    index = {"weight_map": {f"w{value}": name for value, name in enumerate(names)}}
    (disk / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("kept", [rows, statistics, scores, converted])
def test_what_is_kept_is_whole_after_a_power_cut_or_made_again(
    kept: Callable[[Path], Any], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if kept is converted:
        pickles(disk)
    with DiskRecorder(disk) as recorder:
        expected = kept(disk)
    cuts = list(recorder.log.cuts(draws=10))
    assert len(cuts) > 10
    for cut in cuts:
        place = cut.restore(tmp_path / "place")
        assert kept(place) == expected, cut
