"""A merge or a build may die at any moment, of a kill or a power cut: started again, it ends the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge.model_folder import Checkpoint
from safetensors.torch import load_file, save_file

from tests.support import tiny
from tests.support.places import ROOT, SUPPORT

LIMIT = 240  # seconds until a process is taken to hang


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }


def started(*words: Any, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        **options,
    )


def told(processes: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """What harnesses printed, a JSON object a line."""
    found = [process.communicate(timeout=1800) for process in processes]
    assert not any(process.returncode for process in processes), "".join(err for _, err in found)
    return [json.loads(line) for out, _ in found for line in out.splitlines()]


def with_dense(folder: Path, seed: int) -> Path:
    """The same model with a Dense module, whose weights lie in a folder of their own."""
    modules = json.loads((folder / "modules.json").read_text())
    modules.append(
        {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    )
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "3_Dense").mkdir()
    facts = {"in_features": 32, "out_features": 8, "bias": False}
    (folder / "3_Dense" / "config.json").write_text(json.dumps(facts))
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(seed))
    save_file({"linear.weight": weight}, folder / "3_Dense" / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a tiny base and two siblings of it."""
    root = tmp_path_factory.mktemp("models")
    base = tiny.checkpoint(root / "base", "qwen3", num_hidden_layers=1)
    for i in (1, 2):
        tiny.checkpoint(root / f"m{i}", "qwen3", seed=i, like=base, num_hidden_layers=1)
    for i, folder in enumerate(sorted(root.iterdir())):
        with_dense(folder, i)
    return root


@pytest.mark.slow
def test_death_at_a_sample_of_steps_costs_nothing_but_time(models: Path, tmp_path: Path) -> None:
    """Every ninth of the ways to die that the next test goes all through."""
    deaths = told([started(SUPPORT / "killed_merge.py", models, tmp_path, 0, 9)])
    assert_nothing_lost(deaths, tensors=len(Checkpoint(models / "base").specs))
    assert len({d["call"] for d in deaths}) > 4
    assert len({d["done"] for d in deaths}) > 4


@pytest.mark.slow
def test_death_at_any_step_costs_nothing_but_time(models: Path, tmp_path: Path) -> None:
    """Before and in the middle of every write, and before every other change of the disk, by a kill and by
    a power cut that takes with it what was not synced."""
    halves = [
        started(SUPPORT / "killed_merge.py", models, tmp_path / str(first), first, 2)
        for first in (0, 1)
    ]
    deaths = told(halves)
    assert_nothing_lost(deaths, tensors=len(Checkpoint(models / "base").specs))
    before = [d for d in deaths if "half" not in d and "power" not in d]
    assert Counter(d["at"] for d in before) == Counter(range(1, len(before) + 1)), "none left out"
    kinds = {d["call"] for d in deaths}
    assert kinds >= {
        "mkdir",
        "open",
        "write",
        "pwrite",
        "ftruncate",
        "fdatasync",
        "fsync",
        "replace",
    }
    renamed = max(d["at"] for d in before if d["call"] == "replace")
    assert all(d["published"] == (d["at"] > renamed) for d in deaths), (
        "published by the last rename"
    )
    assert {d["done"] for d in deaths} >= {3, 6, 9, 12}


def assert_nothing_lost(deaths: Sequence[dict[str, Any]], *, tensors: int) -> None:
    """Require the bytes of an undisturbed merge, no files left over, and no finished tensor merged again."""
    assert not [death for death in deaths if not death["same"]]
    assert not [death for death in deaths if death["left"] != ["out"]], "no side folder is left"
    assert {d["published"] for d in deaths} == {True, False}
    assert any("half" in d for d in deaths)
    assert any("power" in d for d in deaths)
    begun = [d for d in deaths if d["done"] > 0]
    assert begun
    assert all(d["pieces"] == tensors - d["done"] for d in begun), (
        "what is journalled is not redone"
    )


@pytest.mark.parametrize("every", [12, pytest.param(4, marks=pytest.mark.slow)])
def test_a_build_of_any_jobs_dies_anywhere_and_ends_in_the_same_bytes(
    every: int, models: Path, tmp_path: Path
) -> None:
    deaths = told([started(SUPPORT / "killed_merge.py", models, tmp_path, 0, every, "build")])
    assert not [death for death in deaths if not death["same"]]
    assert not [death for death in deaths if death["left"] != ["out"]], "no side folder is left"
    assert {True, False} == {d["published"] for d in deaths}
    tensors = (
        len(Checkpoint(models / "base").specs) + 4
    )  # an expert's tensor four times, and a mean
    begun = [d for d in deaths if d["done"] > 0]
    assert begun
    assert all(d["pieces"] == tensors - d["done"] for d in begun), (
        "what is journalled is not redone"
    )


@pytest.mark.slow
@pytest.mark.parametrize("every", [6, pytest.param(3, marks=pytest.mark.slow)])
def test_a_merge_that_is_written_direct_dies_anywhere_and_ends_in_the_same_bytes(
    every: int, models: Path, tmp_path: Path
) -> None:
    """Between the whole pages of a tensor and its fragments too, and in the middle of the pages."""
    deaths = told([started(SUPPORT / "killed_merge.py", models, tmp_path, 0, every, "direct")])
    assert not [death for death in deaths if not death["same"]]
    assert not [death for death in deaths if death["left"] != ["out"]], "no side folder is left"
    assert {True, False} == {d["published"] for d in deaths}
    assert any("half" in d for d in deaths)
    assert any("power" in d for d in deaths)
    begun = [d for d in deaths if d["done"] > 0]
    fewest = min(d["done"] for d in begun)
    most = max(d["pieces"] for d in begun if "pieces" in d and d["done"] == fewest)
    tensors = len(Checkpoint(models / "base").specs)
    assert most > tensors - fewest, "some tensors took more than one write"
    assert min(d["pieces"] for d in begun if "pieces" in d) < most, "what is done is not done again"


@pytest.mark.slow
def test_a_hundred_random_kills_end_in_the_same_bytes(tmp_path: Path) -> None:
    size = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    base = tiny.checkpoint(tmp_path / "models" / "m0", num_hidden_layers=5, **size)
    for i in (1, 2):
        folder = tmp_path / "models" / f"m{i}"
        tiny.checkpoint(folder, seed=i, like=base, num_hidden_layers=5, **size)
    words = (SUPPORT / "killed_at_random.py", tmp_path / "models", tmp_path / "work", 100)
    merges = told([started(*words)])
    assert sum(m["kills"] for m in merges) >= 100
    assert all(m["same"] and m["names"] == ["out"] for m in merges)
    resumed = [m["left"] for m in merges if m["kills"] and 0 < m["left"] < 1]
    print(
        f"{len(merges)} merges, {sum(m['kills'] for m in merges)} kills, {len(resumed)} went on midway"
    )
    assert (
        len(resumed) > 5
    )  # how many moments fall midway is the machine's affair; that some do is the test's


# ── the commands ────────────────────────────────────────────────────────────────────────────────

DAWDLE = """
from dataclasses import dataclass
from pathlib import Path
import os, time
import emberge.merging.streaming.stream as journal
from emberge import MergeStrategy, hookimpl

journal.INTERVAL = 0.0
LOG = Path(os.environ["DAWDLE_LOG"])

@dataclass(frozen=True, kw_only=True)
class Dawdle(MergeStrategy):
    "Take the mean, slowly."

    def merge(self, block, stats):
        with LOG.open("a") as file:
            file.write(block.name + "\\n")
        time.sleep(float(os.environ["DAWDLE"]))
        return block.tensors.mean(0)

@hookimpl
def register_merge_strategies():
    return {"dawdle": Dawdle}
"""


@pytest.fixture
def recipe(models: Path, tmp_path: Path) -> Path:
    """A recipe of one merge, by a strategy of a plugin that takes its time and says what it did."""
    (tmp_path / "dawdle.py").write_text(DAWDLE)
    path = tmp_path / "recipe.yaml"
    listed = [str(models / name) for name in ("m1", "m2")]
    step = {"merge": {"models": listed, "strategy": "dawdle"}}
    path.write_text(json.dumps({"steps": {"soup": step}}))
    return path


def run(recipe: Path, out: Path, *, seconds: float = 0.0) -> subprocess.Popen[str]:
    log = str(recipe.with_name("log"))
    plugin = ("--plugin", recipe.with_name("dawdle.py"))
    words = ["-m", "emberge", "run", recipe, "--out", out, *plugin, "--workers", "1"]
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), "DAWDLE": str(seconds), "DAWDLE_LOG": log},
    )


def merged_so_far(recipe: Path) -> list[str]:
    log = recipe.with_name("log")
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_run_says_how_to_go_on_and_does(
    number: signal.Signals, code: int, recipe: Path, models: Path, tmp_path: Path
) -> None:
    process = run(recipe, tmp_path / "out", seconds=0.3)
    until = time.monotonic() + LIMIT
    while len(merged_so_far(recipe)) < 4:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == code
    assert said.splitlines()[-1] == "stopped; the same command goes on from here"
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "soup").exists()
    first = merged_so_far(recipe)
    recipe.with_name("log").unlink()
    rest = run(recipe, tmp_path / "out")
    assert rest.wait(LIMIT) == 0, rest.communicate()
    again = merged_so_far(recipe)
    rest.communicate()
    assert len(set(again) & set(first)) <= 1, "only what was under way is done again"
    assert again
    assert len(set(again)) < len(Checkpoint(models / "base").specs)
    states = [load_file(models / name / "model.safetensors") for name in ("m1", "m2")]
    for name, tensor in load_file(tmp_path / "out" / "soup" / "model.safetensors").items():
        assert torch.equal(tensor, torch.stack([s[name] for s in states]).mean(0))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["run", "merge"])
def test_commands_killed_at_any_step_end_in_the_same_bytes(
    verb: str, models: Path, tmp_path: Path
) -> None:
    deaths = told([started(SUPPORT / "killed_run.py", verb, models, tmp_path / "work", 6)])
    print(f"{verb}: {len(deaths)} deaths")
    assert not [death for death in deaths if not death["same"] or death["left"]]
    assert not [death for death in deaths if death["published"] and not death["whole"]]
    # `merge` refuses to do again what is done.
    allowed = {0} if verb == "run" else {0, 2}
    assert all(d["code"] in (allowed if d["published"] else {0}) for d in deaths)
    assert {d["published"] for d in deaths} == {True, False}
