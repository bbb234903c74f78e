"""What `status` says of an OUT: while it is run, after it failed, after it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from emberge import DataError, EmbergeError, ModelRef, run_recipe
from emberge.recipes import describe_continuation, describe_finished_results, read_status

from tests.support.places import ROOT
from tests.support.steps import Write, recipe, toy

# Runs `a` to its end and `b` until it is killed.
_SLOW = """
import sys, time
from pathlib import Path
from emberge import run_recipe
from tests.support.steps import Write, recipe, toy

plain = Write.run

def slow(self, workspace):
    if self.word == "slow":
        workspace.progress(3, 12, "steps", "warming up")
        print("slow", flush=True)
        time.sleep(60)
    return plain(self, workspace)

Write.run = slow
made = recipe(a=Write(word="a"), b=Write(word="slow"), c=Write(word="c"))
run_recipe(made, Path(sys.argv[1]), toy())
"""


def test_a_record_that_cannot_be_read_shows_no_table(tmp_path: Path) -> None:
    made = recipe(a=Write())
    run_recipe(made, tmp_path, toy())
    (tmp_path / "a" / "artifact.json").write_text('{"kind": 3}')
    assert describe_finished_results(tmp_path, made) == [f"a: {tmp_path / 'a'}"]


def test_done_failed_and_blocked_steps_are_told_apart(tmp_path: Path) -> None:
    made = recipe(
        a=Write(), b=Write(word="b", fail="data"), c=Write(word="c", of=(ModelRef("$b"),))
    )
    with pytest.raises(DataError):
        run_recipe(made, tmp_path, toy())
    found = read_status(tmp_path)
    assert [(s.id, s.state) for s in found.steps] == [
        ("a", "done"),
        ("b", "failed"),
        ("c", "blocked"),
    ]
    assert found.holder is None
    assert found.steps[0].size > 0
    assert found.steps[0].seconds is not None
    assert found.steps[1].note == "rows.jsonl:3: no anchor"
    assert found.steps[2].note == "needs b"
    assert found.lines[-1] == "nobody is running it now"
    assert "done" in found.lines[0]
    (tmp_path / "a" / "config.json").unlink()
    assert read_status(tmp_path).lines[0].endswith("damaged: config.json is missing")


def test_a_running_step_has_its_progress_and_a_killed_one_is_stopped(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "slow\n"
        found = read_status(tmp_path)
        assert [s.state for s in found.steps] == ["done", "running", "waiting"]
        running = found.steps[1]
        assert (running.done, running.total, running.note) == (3, 12, "warming up")
        assert found.holder is not None
        assert f"process {process.pid} on " in found.holder
        assert "25% (3 of 12 steps) warming up" in found.lines[1]
        assert f"process {process.pid}" in found.lines[-1]
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    found = read_status(tmp_path)
    assert [s.state for s in found.steps] == ["done", "stopped", "waiting"]
    assert found.holder is None
    assert found.steps[1].done == 3


def test_an_interrupted_step_is_stopped_and_one_without_its_result_waits(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe(a=Write(ticks=5, stop_at=2)), tmp_path, toy())
    (step,) = read_status(tmp_path).steps
    assert step.state == "stopped"
    assert step.size > 0
    assert describe_continuation(tmp_path) == "the same command goes on from here"
    (work,) = (tmp_path / ".work").iterdir()
    (work / "progress.json").write_text(
        '{"done": 12, "total": 20, "unit": "steps", "note": "loss 1"}'
    )
    for number in (9, 10):  # as a training leaves its states
        (work / "states" / f"step-{number}").mkdir(parents=True)
    shown = "50% (10 of 20 steps) goes on after optimizer step 10"
    assert shown in read_status(tmp_path).lines[0]
    assert describe_continuation(tmp_path).endswith("here: a after optimizer step 10")
    run_recipe(recipe(a=Write(ticks=5, stop_at=2)), tmp_path, toy())
    assert " a: goes on after optimizer step 10 (" in (tmp_path / "run.log").read_text()
    run_recipe(recipe(a=Write()), tmp_path, toy())
    (tmp_path / "a" / "artifact.json").unlink()
    (step,) = read_status(tmp_path).steps
    assert (step.state, step.note) == ("waiting", "its result was removed")


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmbergeError, match="has no run of a recipe"):
        read_status(tmp_path)
    (tmp_path / ".status.json").write_text("{")
    with pytest.raises(EmbergeError, match="is damaged"):
        read_status(tmp_path)
