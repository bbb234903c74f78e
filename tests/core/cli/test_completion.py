"""The words that the shell is offered: verbs, options, files, and names of recipes and components."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.support.commands import environment, python

LINES = {
    "emberge doc": ["doctor"],
    "emberge new": ["new-plugin"],
    "emberge run a.yaml --allow-u": ["--allow-upload"],
    "emberge show tie": ["ties"],
    "emberge show merge:tie": ["merge:ties"],
    "emberge merge a b --strategy sle": ["slerp"],
    "emberge run boom/de": ["boom/demo"],
    "emberge recipes boom/de": ["boom/demo"],
    "emberge run a.yaml --launcher lo": ["local"],
    "emberge list --kind samp": ["sampler"],
    "emberge check r": ["recipe.yaml"],
    "emberge status o": ["out/"],
    "emberge merge a --out o": ["out/"],
    "emberge convert o": ["other.txt", "out/"],
    "emberge run a.yaml --workers o": [],
}
# argcomplete closes file descriptors of its process, and ends it; here one process answers all lines.
ANSWER = """
import argcomplete, io, json, os, sys
from unittest import mock
from emberge.cli.main import main

class Ended(Exception):
    pass

def end(code):
    raise Ended

ask, answers = argcomplete.autocomplete, {}
for line in json.loads(sys.argv[1]):
    said = io.StringIO()
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "|", "COMP_TYPE": "9"}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_WORDBREAKS": " "}
    once = lambda parser: ask(parser, exit_method=end, output_stream=said)
    with mock.patch.dict(os.environ, asked), mock.patch("argcomplete.autocomplete", once):
        try:
            main(["run"])
        except Ended:
            answers[line] = [word.strip() for word in said.getvalue().split("|") if word]
heavy = {"torch", "numpy", "transformers", "datasets"} & set(sys.modules)
print(json.dumps([answers, sorted(heavy)]))
"""


def ask(folder: Path, *lines: str, **settings: str) -> tuple[dict[str, list[str]], list[str]]:
    """(the words that are offered for each line, heavy libraries that this loaded)."""
    here = environment(PYTHONPATH=os.pathsep.join(sys.path), **settings)
    said = python("-P", "-c", ANSWER, json.dumps(lines), env=here, cwd=folder).stdout
    answers, heavy = json.loads(said)
    return answers, heavy


def test_a_word_is_completed_by_what_fits_its_place_without_heavy_libraries(tmp_path: Path) -> None:
    for name in ("recipe.yaml", "readme.txt", "other.txt"):
        (tmp_path / name).touch()
    (tmp_path / "out").mkdir()
    answers, heavy = ask(tmp_path, *LINES)
    assert {line: sorted(words) for line, words in answers.items()} == LINES
    assert heavy == []


def test_a_broken_plugin_takes_no_verb_of_emberge_away(tmp_path: Path) -> None:
    (tmp_path / "broken-1.dist-info").mkdir()
    (tmp_path / "broken-1.dist-info" / "METADATA").write_text("Name: broken\nVersion: 1\n")
    (tmp_path / "broken-1.dist-info" / "entry_points.txt").write_text(
        "[emberge]\nbroken = none.of\n"
    )
    place = os.pathsep.join([*sys.path, str(tmp_path)])
    asked = environment(PYTHONPATH=place)
    said = python("-P", "-c", ANSWER, '["emberge doc"]', env=asked, cwd=tmp_path).stdout
    assert json.loads(said)[0] == {"emberge doc": ["doctor"]}
