"""Nothing in the project loads a pickle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import CORE, PLUGINS, ROOT, python_files

NAMED = re.compile(
    r"pickle\b|cloudpickle|dill|shelve|marshal|joblib|allow_pickle|torch\.load"
    r"|(all_gather|gather|broadcast|scatter|send|recv)_object(_list)?$"
)
LOADING = re.compile(NAMED.pattern.replace("$", ""))


def pickling(file: Path) -> Iterator[str]:
    """Lines that load pickles, or have torch load them: its collectives of objects."""
    text = file.read_text("utf-8")
    for node in ast.walk(ast.parse(text)) if LOADING.search(text) else ():
        names = set()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {getattr(node, "module", None) or "", *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Attribute):
            names = {node.attr}
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            names = {"" if ast.unparse(node.value) == "False" else "allow_pickle"}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            safe = any(ast.unparse(k) == "weights_only=True" for k in node.keywords)
            names = {"" if safe else "torch.load"}
        if any(NAMED.match(name) for name in names):
            yield f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def test_nothing_in_the_project_loads_a_pickle() -> None:
    """The one that a user asks to convert, torch reads as weights only."""
    assert not [place for file in python_files(CORE, PLUGINS) for place in pickling(file)]


def test_the_rule_on_pickles_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "loads.py"
    file.write_text(
        "import pickle\ndist.all_gather_object(a, b)\nnp.load(p, allow_pickle=True)\n"
        "torch.load(p)\ntorch.load(p, weights_only=True)\nnp.load(p, allow_pickle=False)\n"
    )
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert sorted(int(place.rpartition(":")[2]) for place in pickling(file)) == [1, 2, 3, 4]
