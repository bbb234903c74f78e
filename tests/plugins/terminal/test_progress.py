"""What a run shows in a terminal, in a file, and when it is asked to be quiet."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from emberge import Artifact, ModelRef, run_recipe
from emberge.contracts import MetricLogged, StepFinished, StepProgressed, StepStarted
from emberge_terminal import RunView, hooks

from tests.support.steps import Write, recipe, toy

OUT = Path("out")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_plain_lines_tell_start_tenths_and_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins = toy(hooks)
    run_recipe(recipe(a=Write(warn="few rows"), b=Write(word="b")), tmp_path, plugins)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a: started"
    assert "a: warning: few rows" in lines
    assert any(
        line.startswith("a: done in ") and line.endswith(f"{tmp_path / 'a'}") for line in lines
    )
    run_recipe(recipe(a=Write(warn="few rows"), b=Write(word="b")), tmp_path, plugins)
    assert capsys.readouterr().out.splitlines() == [
        f"a: done before, in {tmp_path / 'a'}",
        f"b: done before, in {tmp_path / 'b'}",
        "kept from before: 2 steps",
    ]


def test_plain_progress_is_a_line_a_tenth_of_each_step_with_the_time_left() -> None:
    stream = io.StringIO()
    view, now = RunView(stream), 0.0
    view.bars.get_time = lambda: now
    for done in range(100, 1001):  # it goes on from the first tenth
        now += 0.1
        for step in ("a", "b"):
            view.show(StepProgressed(OUT, step, done, 1000, "", "epoch 1"))
            view.show(MetricLogged(OUT, step, "loss", 0.5, None))
    lines = stream.getvalue().splitlines()
    assert [line[:2] for line in lines] == ["a:", "b:"] * 10
    assert lines[2] == "a: 20%, 1 min 20 s left, loss 0.5, epoch 1"
    assert lines[-1].startswith("b: 100%")


def test_quiet_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_recipe(recipe(a=Write(warn="few rows")), tmp_path, toy(hooks), quiet=True)
    assert capsys.readouterr().out == ""


def test_a_failure_is_shown_and_the_view_is_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = recipe(a=Write(fail="bug"), b=Write(word="b", of=(ModelRef("$a"),)))
    with pytest.raises(ValueError, match="a bug"):
        run_recipe(made, tmp_path, toy(hooks))
    assert "a: failed: a bug" in capsys.readouterr().out
    assert hooks._VIEW_BY_OUT == {}


def test_a_terminal_shows_a_bar_for_each_running_step_and_gets_its_cursor_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    view = RunView(stream)
    for step in ("train", "merge"):
        view.show(StepStarted(OUT, step, "toy:write", "0123", 3 if step == "train" else None))
        view.show(StepProgressed(OUT, step, 1, 4, "", "epoch 1"))
    view.show(MetricLogged(OUT, "train", "loss", 0.5, None))
    view.show(StepFinished(OUT, "merge", OUT / "merge", Artifact("model"), 2.0))
    view.bars.refresh()
    view.close()
    text = stream.getvalue()
    assert "▸ train" in text
    assert "train: goes on after optimizer step 3\n" in text
    assert "25%" in text
    assert "loss 0.5  epoch 1" in text
    assert "merge: done in 2.0 s, out/merge\n" in text
    assert "▸ merge" not in text[text.rindex("merge: done") :], "its bar goes before the line"
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
