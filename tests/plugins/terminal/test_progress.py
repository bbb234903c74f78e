"""What a run shows in a terminal, in a file, and when it is asked to be quiet."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from emberge import ModelRef, run_recipe
from emberge_terminal import progress
from emberge_terminal.progress import StepView, duration, open_view, table

from tests.support.steps import Write, recipe, toy


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(views: list[StepView], height: int = 40) -> str:
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=120).print(table(views, height, time.monotonic()))
    return stream.getvalue()


def test_plain_lines_tell_start_tenths_and_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins = toy(progress)
    run_recipe(recipe(a=Write(warn="few rows"), b=Write(word="b")), tmp_path, plugins)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a: started"
    assert "a: warning: few rows" in lines
    assert any(
        line.startswith("a: done in ") and line.endswith(f"{tmp_path / 'a'}") for line in lines
    )
    run_recipe(recipe(a=Write(warn="few rows"), b=Write(word="b")), tmp_path, plugins)
    assert capsys.readouterr().out.splitlines() == [
        f"a: done before, stands in {tmp_path / 'a'}",
        f"b: done before, stands in {tmp_path / 'b'}",
    ]


def test_plain_progress_is_a_line_a_tenth() -> None:
    stream = io.StringIO()
    view = open_view(Path("out"), ["a"], stream)
    step = view.steps["a"]
    for done in range(1001):
        step.progressed(time.monotonic(), done, 1000)
        view.draw(step, "progress")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("a: 10%")
    assert lines[-1].startswith("a: 100%")


def test_a_phase_of_unknown_length_is_a_line_at_once() -> None:
    stream = io.StringIO()
    view = open_view(Path("out"), ["a"], stream)
    step = view.steps["a"]
    for total, note in ((0, "loading rows"), (10, "steps"), (0, "scoring"), (10, "steps")):
        step.note = note
        step.progressed(time.monotonic(), total / 10, total)
        view.draw(step, "progress")
    lines = [line.partition(",")[0] for line in stream.getvalue().splitlines()]
    assert lines == ["a: loading rows", "a: 10%", "a: scoring", "a: 10%"]


def test_quiet_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_recipe(recipe(a=Write(warn="few rows")), tmp_path, toy(progress), quiet=True)
    assert capsys.readouterr().out == ""


def test_a_failure_is_told_and_nothing_is_left_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = recipe(a=Write(fail="bug"), b=Write(word="b", of=(ModelRef("$a"),)))
    with pytest.raises(ValueError, match="a bug"):
        run_recipe(made, tmp_path, toy(progress))
    assert "a: failed: a bug" in capsys.readouterr().out
    assert progress._runs == {}


def test_runs_side_by_side_do_not_mix(tmp_path: Path) -> None:
    one, two = io.StringIO(), io.StringIO()
    progress._runs[tmp_path / "one"] = open_view(tmp_path / "one", ["a"], one)
    progress._runs[tmp_path / "two"] = open_view(tmp_path / "two", ["a"], two)
    progress.step_started(tmp_path / "one", "a")
    progress.run_finished(tmp_path / "one")
    progress.step_started(tmp_path / "two", "a")
    progress.run_finished(tmp_path / "two")
    assert one.getvalue() == two.getvalue() == "a: started\n"
    assert progress._runs == {}


def test_a_terminal_shows_a_live_table_and_gets_its_cursor_back(tmp_path: Path) -> None:
    stream = Terminal()
    view = open_view(tmp_path, ["a", "b"], stream)
    view.steps["a"].state = "running"
    time.sleep(0.3)
    view.draw(view.steps["a"], "warned")
    view.close()
    text = stream.getvalue()
    assert "a: warning:" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_the_running_step_shows_share_time_left_speed_and_loss() -> None:
    now = time.monotonic()
    view = StepView(
        "train", "running", note="epoch 1", unit="steps", metric="loss 0.5", start_time=now
    )
    view.progressed(now - 10, 100, 400)  # it goes on from step 100
    view.progressed(now, 200, 400)
    assert view.rate(now) == pytest.approx(10)
    assert view.left(now) == pytest.approx(20)
    text = shown([StepView("corpus", "done", seconds=3.21), view, StepView("merge")])
    assert "✓ corpus" in text
    assert "50%  20 s left  10 steps/s  loss 0.5  epoch 1" in text
    assert "· merge" in text
    assert "running" not in text  # one that runs alone needs no count
    unknown = StepView("a", "running", start_time=now - 5)
    assert unknown.rate(now) is None
    unknown.progressed(now, 0, 10)
    assert unknown.left(now) is None
    assert "left" not in shown([unknown])


def test_a_low_terminal_shows_the_steps_around_the_running_one() -> None:
    views = [StepView(f"step{i}", "done" if i < 50 else "waiting", seconds=1) for i in range(100)]
    views[50].state = "running"
    text = shown(views, height=12)
    assert "step50" in text
    assert "step0 " not in text
    assert "and 92 more" in text
    assert len(text.splitlines()) <= 12


def test_all_that_run_are_shown_each_with_its_time_left_and_a_count_below() -> None:
    now = time.monotonic()
    views = [StepView(f"step{i}", "done" if i < 20 else "waiting", seconds=1) for i in range(100)]
    for number, done in ((20, 100), (21, 200), (70, 300)):
        views[number].state = "running"
        views[number].progressed(now - 10, 0, 400)
        views[number].progressed(now, done, 400)
    text = shown(views, height=12)
    for words in (
        "step20",
        "25%  30 s left",
        "step21",
        "50%  10 s left",
        "step70",
        "75%  3.3 s left",
    ):
        assert words in text
    assert text.index("step21") < text.index("step70")
    assert "3 running, 20 of 100 done" in text
    assert len(text.splitlines()) <= 12


def test_plain_lines_of_several_steps_each_say_whose_they_are() -> None:
    stream = io.StringIO()
    view = open_view(Path("out"), ["a", "b"], stream)
    for done in range(11):
        for step in view.steps.values():
            step.progressed(time.monotonic() + done, done, 10)
            view.draw(step, "progress")
    lines = stream.getvalue().splitlines()
    assert [line[:2] for line in lines] == ["a:", "b:"] * 10
    assert all(" left" in line for line in lines[:2])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text
