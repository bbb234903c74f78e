"""Progress in a notebook is plain lines."""

from __future__ import annotations

from pathlib import Path

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
