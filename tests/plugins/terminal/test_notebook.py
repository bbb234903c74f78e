"""Progress in a notebook is plain lines, and an interrupted cell goes on when it is run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny
from tests.support.kernel import kernel, texts
from tests.support.places import ROOT

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


def test_a_cell_has_plain_lines_without_escape_codes(tmp_path: Path) -> None:
    with kernel(tmp_path) as running:
        messages = running.run(CELL.format(root=str(ROOT)))
        assert {m["msg_type"] for m in messages[:-1]} == {"stream"}
        assert messages[-1]["msg_type"] == "execute_result"
        lines = "".join(texts(messages[:-1])).splitlines()
        assert r"a: warning: odd \x1b[31m" in lines
        assert [line for line in lines if line.startswith("b: done in ")]


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
        assert not (tmp_path / "out" / "merged").exists()
        assert [*(tmp_path / "out" / ".work").iterdir()]
        running.run(TRAINING.replace("OUT", "'out'"))
        running.run(TRAINING.replace("OUT", "'whole'"))
    one, whole = (tmp_path / out / "merged" / "model.safetensors" for out in ("out", "whole"))
    assert one.read_bytes() == whole.read_bytes()
