"""A merge that is killed or stopped goes on where it was."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from emberge.cli.main import main
from emberge.model_folder import Checkpoint
from safetensors.torch import load_file

from tests.support import tiny
from tests.support.commands import environment

LIMIT = 240  # seconds until a process is taken to hang


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a tiny base and two siblings of it."""
    root = tmp_path_factory.mktemp("models")
    base = tiny.checkpoint(root / "base", "qwen3", num_hidden_layers=1)
    for i in (1, 2):
        tiny.checkpoint(root / f"m{i}", "qwen3", seed=i, like=base, num_hidden_layers=1)
    return root


# ── the commands ────────────────────────────────────────────────────────────────────────────────

DAWDLE = """
from dataclasses import dataclass
from pathlib import Path
import os, time
import emberge.merging.streaming.journal as journal
from emberge import MergeStrategy, hookimpl

journal.SYNC_INTERVAL = 0.0
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


def words(recipe: Path, out: Path) -> list[str]:
    """The command that runs a recipe in one thread."""
    found = ("run", recipe, "--out", out, "--plugin", recipe.with_name("dawdle.py"))
    return [*map(str, found), "--workers", "1"]


def merged_so_far(recipe: Path) -> list[str]:
    log = recipe.with_name("log")
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_killed_merge_continues_with_the_same_command(
    number: signal.Signals,
    code: int,
    recipe: Path,
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = words(recipe, tmp_path / "out")
    monkeypatch.setenv("DAWDLE_LOG", str(recipe.with_name("log")))
    monkeypatch.setenv("DAWDLE", "0.3")
    process = subprocess.Popen(
        [sys.executable, "-m", "emberge", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
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
    monkeypatch.setenv("DAWDLE", "0")
    assert main(command) == 0
    again = merged_so_far(recipe)
    assert len(set(again) & set(first)) <= 1, "only what was under way is done again"
    assert again
    assert len(set(again)) < len(Checkpoint(models / "base").specs)
    states = [load_file(models / name / "model.safetensors") for name in ("m1", "m2")]
    for name, tensor in load_file(tmp_path / "out" / "soup" / "model.safetensors").items():
        assert torch.equal(tensor, torch.stack([s[name] for s in states]).mean(0))
