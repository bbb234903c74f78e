"""An edited plugin file makes the results of its components stale, and a result names the file's content."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest
from emberge import load_plugins, parse_recipe, run_recipe

PLUGIN = '''
from dataclasses import dataclass

from emberge import Loss, hookimpl


@dataclass(frozen=True, kw_only=True)
class Margin(Loss):
    """Return a number."""

    def compute(self, embeddings, *, step=0):
        return 1


@dataclass(frozen=True, kw_only=True)
class Other(Loss):
    """Return nothing."""


@hookimpl
def register_losses():
    return {"margin": Margin, "other": Other}
'''
STEPS = '''
from dataclasses import dataclass

from emberge import Artifact, Loss, Step, hookimpl


@dataclass(frozen=True, kw_only=True)
class Number(Step):
    """Write the number of a loss, or its own."""

    loss: Loss | None = None
    """Loss that gives the number."""
    produces = "file"

    def run(self, workspace):
        number = 5 if self.loss is None else self.loss.compute(None)
        (workspace.folder / "number").write_text(str(number))
        return Artifact("file")


@hookimpl
def register_steps():
    return {"number": Number}
'''
RECIPE = "steps:\n  with_loss: {number: {loss: margin}}\n  without: {number: {}}\n"


def run_both(place: Path) -> dict[str, str]:
    """Run the recipe with the plugin files in `place`; return each step's number and result folder."""
    plugins = load_plugins([place / "margin.py", place / "number.py"], block=["*"])
    results = run_recipe(parse_recipe(RECIPE, plugins), place / "out", plugins)
    return {
        name: f"{(result.path / 'number').read_text()} {result.path.resolve().name}"
        for name, result in results.items()
    }


def test_a_step_is_done_again_if_the_file_of_its_loss_was_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "number.py").write_text(STEPS)
    (tmp_path / "margin.py").write_text(PLUGIN)
    os.utime(tmp_path / "margin.py", (1e9, 1e9))
    before = run_both(tmp_path)
    assert run_both(tmp_path) == before
    # Of equal size and time: Python's cache of compiled files would not notice the edit.
    (tmp_path / "margin.py").write_text(PLUGIN.replace("return 1", "return 2"))
    os.utime(tmp_path / "margin.py", (1e9, 1e9))
    after = run_both(tmp_path)
    assert (before["with_loss"][0], after["with_loss"][0]) == ("1", "2")
    assert after["without"] == before["without"]  # it uses nothing of the edited file


def test_a_step_is_done_again_if_its_own_file_was_edited(tmp_path: Path) -> None:
    (tmp_path / "number.py").write_text(STEPS)
    (tmp_path / "margin.py").write_text(PLUGIN)
    before = run_both(tmp_path)
    (tmp_path / "number.py").write_text(STEPS.replace("5 if", "6 if"))
    after = run_both(tmp_path)
    assert (before["without"][0], after["without"][0]) == ("5", "6")
    assert after["with_loss"] != before["with_loss"]


def test_a_result_names_the_content_of_the_files_behind_it(tmp_path: Path) -> None:
    (tmp_path / "number.py").write_text(STEPS)
    (tmp_path / "margin.py").write_text(PLUGIN)
    run_both(tmp_path)
    text = (tmp_path / "out" / "with_loss" / "artifact.json").read_text()
    for name in ("number.py", "margin.py"):
        digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        assert f"file {name} sha256:{digest}" in text
