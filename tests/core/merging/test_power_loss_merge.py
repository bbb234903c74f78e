"""A merge or a build that dies goes on or begins again, and a published model is whole.

What a death leaves, by a kill or a power cut, is described in `tests/support/power_cuts.py`.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import emberge.merging.streaming.stream as journal
import pytest
import torch
from emberge import Machine
from emberge.merging import MergeInput
from emberge.tensor_files import tensor_writer
from emberge_merge import Linear
from safetensors.torch import save_file

from tests.support import built, tiny
from tests.support.disk_recorder import DiskRecorder, syncs_skipped
from tests.support.merges import merge_models
from tests.support.power_cuts import Cut, DiskLog, Tree, contents

JOURNAL = ".out.partial/journal.jsonl"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two tiny models, each with weights in a module's folder too."""
    root = tmp_path_factory.mktemp("models")
    for i in (0, 1):
        folder = tiny.checkpoint(root / f"m{i}", "qwen3", seed=i, num_hidden_layers=1)
        modules = json.loads((folder / "modules.json").read_text())
        modules.append(
            {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
        )
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "3_Dense").mkdir()
        facts = {"in_features": 32, "out_features": 8, "bias": False}
        (folder / "3_Dense" / "config.json").write_text(json.dumps(facts))
        weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(i))
        save_file({"linear.weight": weight}, folder / "3_Dense" / "model.safetensors")
    return root


@pytest.fixture(autouse=True)
def _quick_disk_and_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Skip syncs, and take every third tensor or so for time to sync: names wait, and others are done."""
    clock = SimpleNamespace(monotonic=itertools.count().__next__)
    monkeypatch.setattr(journal, "time", clock)
    with syncs_skipped():
        yield


def merge(models: Path, disk: Path) -> int:
    """Merge into `out`, in three files and one more; return how often a tensor was computed."""
    computed: list[str] = []
    merge_models(
        [MergeInput(path.name, path) for path in sorted(models.iterdir())],
        strategy=[Linear()],
        out=disk / "out",
        max_shard_size="24KB",
        machine=Machine(workers=1),
        progress=lambda _done, _total, name: computed.append(name),
    )
    return len(computed)


def build(models: Path, disk: Path) -> int:
    """Build an upcycled checkpoint, with a file changed and one added; return as `merge` does."""
    computed: list[str] = []
    built.build(
        models / "m0",
        disk / "out",
        "layers.0.mlp.up_proj.weight",
        files={"config.json": {"num_experts": built.EXPERTS}, "code/model.py": "pass\n"},
        max_shard_size="24KB",
        machine=Machine(workers=1),
        progress=lambda _done, _total, name: computed.append(name),
    )
    return len(computed)


class Undisturbed:
    """Work that nobody disturbs, by which others are judged, and the log of what it does to a disk."""

    def __init__(self, work: Callable[[Path], int], root: Path) -> None:
        self.work, self.place = work, root / "place"
        for name in ("whole", "disk"):
            (root / name).mkdir()
        self.tensors = work(root / "whole")
        self.expected = contents(root / "whole" / "out")
        self.log = self.record(root / "disk")
        assert contents(root / "disk" / "out") == self.expected

    def record(self, disk: Path) -> DiskLog:
        with DiskRecorder(disk) as recorder:
            self.work(disk)
            recorder.announce("done")
        return recorder.log

    def faults(self, cut: Cut) -> Iterator[str]:
        """Do the work again on a disk that a death left; yield what is wrong then."""
        cut.restore(self.place)
        out = self.place / "out"
        if cut.announced and not out.exists():
            yield f"{cut}: was announced and is lost"
        if not out.exists():
            computed = self.work(self.place)
            # Without a journal, which goes right before the publishing, all is computed again.
            left = self.tensors - (done(cut.safe) if JOURNAL in cut.tree else 0)
            if computed > left:
                yield f"{cut}: computed {computed} tensors, and {left} were left"
        if contents(out) != self.expected:
            yield f"{cut}: other bytes"
        if [path.name for path in self.place.iterdir()] != ["out"]:
            yield f"{cut}: leaves something behind"


def done(tree: Tree) -> int:
    """Return the number of tensors that a disk's journal calls done."""
    content = tree[JOURNAL].content if JOURNAL in tree else b""
    return content.count(b"\n") - 1 if content else 0


MANY = {"draws": 10, "everywhere": True, "most": 600}


@pytest.mark.parametrize(
    ("work", "direct", "how"),
    [
        (merge, False, {"draws": 2, "most": 80}),
        pytest.param(merge, False, MANY, marks=pytest.mark.slow),
        pytest.param(merge, True, MANY, marks=pytest.mark.slow),
        pytest.param(build, False, MANY, marks=pytest.mark.slow),
    ],
)
def test_work_that_dies_anywhere_ends_in_the_same_bytes(
    work: Callable[[Path, Path], int],
    direct: bool,
    how: dict[str, Any],
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Published means whole, announced means there, and what the journal has is not computed again.

    Tensors that are written direct are cut between their whole pages and their fragments too.
    """
    if direct:
        monkeypatch.setattr(tensor_writer, "DIRECT", 0)
    judge = Undisturbed(partial(work, models), tmp_path)
    cuts = list(judge.log.cuts(**how))
    faults = judge.log.faults(judge.faults, cuts)
    assert not faults, faults
    assert len({done(cut.safe) for cut in cuts}) > 4, "names were journalled meanwhile"
    assert {"out" in cut.tree for cut in cuts} == {True, False}


@pytest.mark.slow
def test_a_merge_whose_power_is_cut_twice_does_nothing_again(models: Path, tmp_path: Path) -> None:
    """The second run takes away what the first left of a torn line, or a third could not read its own."""
    judge = Undisturbed(partial(merge, models), tmp_path)
    torn = [cut for cut in judge.log.cuts(draws=0) if torn_journal(cut)]
    assert len(torn) > 3
    draw = random.Random(0)
    for first in draw.sample(torn, 3):
        disk = first.restore(tmp_path / "again")
        again = [cut for cut in judge.record(disk).cuts(draws=0) if JOURNAL in cut.tree]
        faults = judge.log.faults(judge.faults, draw.sample(again, 12))
        assert not faults, f"after {first}:\n{faults}"


def torn_journal(cut: Cut) -> bool:
    """Return whether a disk's journal has lines that are whole and one that is not."""
    content = cut.tree[JOURNAL].content if JOURNAL in cut.tree else b""
    last = content.rpartition(b"\n")[2]
    return done(cut.safe) > 0 and (last != b"" or b"\0" in content)
