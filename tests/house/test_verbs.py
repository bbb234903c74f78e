"""The README's table of verbs is what the command line says of them."""

from __future__ import annotations

import inspect

from emberge import load_plugins
from emberge.cli import verbs
from emberge.cli.arguments import VERBS

from tests.support.sources import ROOT


def table() -> dict[str, str]:
    """What the README says of each verb."""
    rows = {}
    for line in (ROOT / "README.md").read_text("utf-8").splitlines():
        if line.startswith("| `emberge "):
            _, verb, says, _ = line.split("|")
            rows[verb.strip(" `").removeprefix("emberge ")] = says.strip()
    return rows


def test_the_readme_names_each_verb_in_its_words() -> None:
    texts = {verb: text for verb, (text, _) in VERBS.items()}
    texts |= {name: verb.summary for name, verb in load_plugins(block=()).verbs.items()}
    said = {verb: f"{text[0].upper()}{text[1:]}." for verb, text in texts.items()}
    assert table() == said


def test_each_verb_is_one_call() -> None:
    defined = {name for name, _ in inspect.getmembers(verbs, inspect.isfunction)}
    own = {name for name in defined if getattr(verbs, name).__module__ == verbs.__name__}
    calls = {name for name in own if not name.startswith("_")}
    assert {verb.replace("-", "_") for verb in VERBS} == calls
