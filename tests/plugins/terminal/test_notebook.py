"""Progress in a notebook is one text that changes, and an interrupted cell goes on when it is run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge_terminal.notebook import runs_in_notebook
from emberge_terminal.progress import NotebookLine, StepView

from tests.support import tiny
from tests.support.kernel import kernel, texts
from tests.support.places import ROOT


class Cell:
    """A cell that remembers every text."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def show(self, text: str) -> None:
        self.texts.append(text)


def line(*views: StepView) -> tuple[NotebookLine, list[str]]:
    cell: Any = Cell()
    return NotebookLine(list(views), cell), cell.texts


def test_the_line_shows_the_running_step_and_the_count() -> None:
    train, merge = StepView("train", "running", note="epoch 1"), StepView("merge")
    draw, shown = line(StepView("data", "skipped"), train, merge)
    train.progressed(0.0, 30, 100)
    draw(train, "started")
    assert shown == ["▸  train  30%  epoch 1  (1 of 3 done)"]
    merge.state = "running"
    draw(merge, "started")
    assert shown[-1] == "▸  train  30%  epoch 1  and 1 more running  (1 of 3 done)"


def test_the_line_changes_at_most_five_times_a_second_by_progress() -> None:
    train = StepView("train", "running")
    draw, shown = line(train)
    for done in range(1000):
        train.progressed(0.0, done, 1000)
        draw(train, "metric")
    assert len(shown) < 10
    draw(train, "finished")
    assert shown[-1].startswith("▸  train  100%")


def test_warnings_and_failures_stay_above_the_line() -> None:
    one, two = StepView("one", "done", note="few rows"), StepView("two", "failed", note="a bug")
    draw, shown = line(one, two)
    draw(one, "warned")
    draw(two, "failed")
    draw.close(ValueError("a bug"))
    kept, failed, last = shown[-1].splitlines()
    assert (kept, failed) == ("one: warning: few rows", "two: failed: a bug")
    assert last.startswith("✗ ended by an error after ")
    assert last.endswith("1 of 2 done; the same call goes on from here")


def test_the_end_says_how_many_are_done_or_that_the_run_was_stopped() -> None:
    draw, shown = line(StepView("one", "done"), StepView("two", "skipped"))
    draw.close(None)
    assert shown[-1].startswith("✓ 2 of 2 done in ")
    draw.close(KeyboardInterrupt())
    assert shown[-1].startswith("✗ stopped after ")


def test_a_test_is_no_notebook() -> None:
    assert not runs_in_notebook()


CELL = """
import sys
sys.path.insert(0, {root!r})
from emberge import parse_recipe, run_recipe
from emberge_terminal import hooks
from tests.support.steps import toy

recipe = {{"steps": {{"a": {{"write": {{"word": "\x1b[31mred", "warn": "odd \x1b[31m"}}}},
                      "b": {{"write": {{"of": ["$a"]}}}}}}}}
run_recipe(recipe, "out", toy(hooks))["b"]
"""


def test_a_cell_has_one_text_that_changes_and_no_escape_codes(tmp_path: Path) -> None:
    with kernel(tmp_path) as running:
        messages = running.run(CELL.format(root=str(ROOT)))
        kinds = [m["msg_type"] for m in messages]
        assert kinds[0] == "display_data"
        assert set(kinds[1:-1]) == {"update_display_data"}
        assert kinds[-1] == "execute_result"
        ids = {m["content"]["transient"]["display_id"] for m in messages[:-1]}
        assert len(ids) == 1
        *_, last, _ = texts(messages)
        warning, end = last.splitlines()
        assert warning == r"a: warning: odd \x1b[31m"
        assert end.startswith("✓ 2 of 2 done in ")
        wrong = running.run('run_recipe({"steps": {"a": {"wrte": {}}}}, "out", toy())')
        (text,) = texts(wrong)
        assert text.startswith("RecipeError: recipe.steps.a")


TRAINING = """
from emberge import run_recipe

recipe = {"steps": {
    "one": {"train": {"model": "./bert", "data": "./pairs.jsonl", "max_steps": 150,
                      "sampler": {"batch_shuffle": {"batch_size": 8}}, "loss": "infonce"}},
    "merged": {"merge": {"models": ["./bert", "$one"]}},
}}
results = run_recipe(recipe, OUT)
"""


@pytest.mark.slow
def test_an_interrupted_kernel_goes_on_and_gives_the_same_bytes(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "bert").symlink_to(bert)
    pairs = zip(tiny.WORDS, reversed(tiny.WORDS), strict=True)
    rows = [{"query": f"find the {one}", "pos": [f"{one} of {two}"]} for one, two in pairs]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def has_begun(message: dict[str, Any]) -> bool:
        return any("%" in text for text in texts([message]))

    with kernel(tmp_path) as running:
        stopped = running.run(TRAINING.replace("OUT", "'out'"), has_begun)
        assert stopped[-1]["content"]["ename"] == "KeyboardInterrupt"
        assert any("✗ stopped after" in text for text in texts(stopped))
        assert not (tmp_path / "out" / "merged").exists()
        assert [*(tmp_path / "out" / ".work").iterdir()]
        again = running.run(TRAINING.replace("OUT", "'out'"))
        assert "✓ 2 of 2 done" in texts(again)[-1]
        running.run(TRAINING.replace("OUT", "'whole'"))
    one, whole = (tmp_path / out / "merged" / "model.safetensors" for out in ("out", "whole"))
    assert one.read_bytes() == whole.read_bytes()
