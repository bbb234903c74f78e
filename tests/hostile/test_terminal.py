"""Names of strangers steer no terminal: errors, progress and the log of a run write escapes as text."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from emberge import Artifact, EmbergeError, run_recipe
from emberge.cli import verbs
from emberge.cli.main import main
from emberge.contracts import RunFinished, RunStarted, StepProgressed, StepStarted, StepWarned
from emberge.recipes.run_status import read_result_table
from emberge_terminal import hooks

from tests.support.fixture_types import Capture, Patch
from tests.support.places import SUPPORT
from tests.support.steps import Write, recipe, toy

# Clears the screen, sets a title, rings, goes back to the line's start, turns the writing round.
STEERING = "\x1b[2J\x1b]0;pwned\x07\rsafe\x9b31m\u202etxt"
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PLUGIN = ["--plugin", str(SUPPORT / "toy_plugin.py")]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMBERGE_BLOCK", "*")


@pytest.mark.parametrize("error", [EmbergeError(STEERING), ValueError(STEERING)])
def test_what_an_error_says_steers_no_terminal(
    error: Exception, capsys: Capture, monkeypatch: Patch
) -> None:
    def fails(*_: object) -> int:
        raise error

    monkeypatch.setattr(verbs, "show_status", fails)
    assert main(["status", "out"]) == 1
    shown = capsys.readouterr().err
    assert not STEERS.search(shown)
    assert "\\x1b[2J" in shown


@pytest.mark.parametrize("words", [("verify", "."), ("status", "."), ("clean", ".", "--yes")])
def test_files_of_strangers_steer_no_terminal(
    words: Sequence[str], tmp_path: Path, capsys: Capture
) -> None:
    facts = {"component": "", "seed": 0, "versions": {}, "files": {}}
    (tmp_path / "artifact.json").write_text(json.dumps({"kind": "data", "step": STEERING, **facts}))
    step = {"id": "a", "kind": "b", "state": "failed", "error": STEERING}
    (tmp_path / ".status.json").write_text(json.dumps({"steps": [step]}))
    (tmp_path / ".work" / f"{STEERING}-0123abcd").mkdir(parents=True)
    assert main([*words]) == 0
    shown = capsys.readouterr().out
    assert "\\x1b[2J" in shown
    assert not STEERS.search(shown)


def test_places_of_uploads_steer_no_terminal(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Write, "list_upload_places", lambda _: (STEERING,))
    Path("r.yaml").write_text("seed: 0\nsteps:\n  a: {write: {}}\n")
    assert main([*PLUGIN, "check", "r.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "uploads to \\x1b[2J" in shown
    assert not STEERS.search(shown)


def test_progress_and_the_log_of_a_run_steer_no_terminal(tmp_path: Path, capsys: Capture) -> None:
    forged = "2026-01-01 00:00:00 run ended well"
    run_recipe(recipe(a=Write(warn=f"a row {STEERING}\n{forged}")), tmp_path / "out", toy(hooks))
    shown, log = capsys.readouterr().out, (tmp_path / "out" / "run.log").read_text()
    for text in (shown, log):
        assert "a row \\x1b[2J" in text
        assert not STEERS.search(text)
        assert forged not in text.splitlines()


@pytest.mark.parametrize("named", ["../secret.md", "{place}/secret.md", "link.md"])
def test_a_record_shows_no_table_of_elsewhere(tmp_path: Path, named: str) -> None:
    (tmp_path / "secret.md").write_text("secret")
    result = tmp_path / "result"
    result.mkdir()
    (result / "own.md").write_text("| own |")
    (result / "link.md").symlink_to(tmp_path / "secret.md")
    elsewhere = Artifact("file", table=named.format(place=tmp_path))
    assert read_result_table(result, elsewhere) == ""
    assert read_result_table(result, Artifact("file", table="own.md")) == "| own |"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_live_table_has_our_colours_and_no_escapes_of_a_step(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    out = Path("out")
    step = f"a{STEERING}"
    for event in (
        RunStarted(out, None, (step,), quiet=False),
        StepStarted(out, step, "toy:write", "0123"),
        StepProgressed(out, step, 1, 2, "", f"[red]{STEERING}"),
        StepWarned(out, step, f"[red]warned[/red] {STEERING}"),
        RunFinished(out, None, {}, {}, ()),
    ):
        hooks.hear_event(event)
    shown = stream.getvalue()
    assert "\x1b[" in shown  # ours
    assert "\x1b[2J" not in shown
    assert "\x1b]0;" not in shown
    assert "\u202e" not in shown
    assert "[red]warned[/red]" in shown
