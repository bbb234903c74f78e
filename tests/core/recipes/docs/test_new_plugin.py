"""`emberge new-plugin NAME` writes a repository that works as it stands."""

from __future__ import annotations

import ast
import importlib
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from emberge import RecipeError
from emberge.plugins import Plugins
from emberge.recipes import write_plugin
from emberge.recipes.docs import new_plugin

from tests.support.places import ROOT

EXAMPLE = ROOT / "examples" / "third_party_plugin"


def contents(folder: Path) -> dict[str, str]:
    skipped = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "out")
    files = [f for f in folder.rglob("*") if f.is_file() and not set(skipped) & set(f.parts)]
    return {str(f.relative_to(folder)): f.read_text("utf-8") for f in files}


def test_the_example_is_what_a_new_plugin_looks_like(tmp_path: Path) -> None:
    assert contents(write_plugin("acme", tmp_path / "new")) == contents(EXAMPLE)


def test_a_new_plugin_bears_its_own_name_everywhere(tmp_path: Path) -> None:
    folder = write_plugin("my_bags", tmp_path / "src" / "bags")
    assert folder == tmp_path / "src" / "bags"
    files = contents(folder)
    assert not [name for name, text in files.items() if "acme" in (name + text).lower()]
    project = tomllib.loads(files["pyproject.toml"])
    assert project["project"]["name"] == "emberge-my-bags"
    assert project["project"]["entry-points"]["emberge"] == {"my_bags": "emberge_my_bags"}
    assert "emberge_my_bags/__init__.py" in files
    assert all(ast.parse(text) for name, text in files.items() if name.endswith(".py") and text)


COMPONENTS = ("keep_norm", "keep_norm_plain", "uniformity", "keep_layers")


def test_a_new_plugin_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(write_plugin("fresh", tmp_path / "new"))
    plugins = Plugins()
    plugins.register(importlib.import_module("emberge_fresh"), "fresh")
    names = {c.full_name for c in plugins.components}
    assert names == {f"fresh:{one}" for one in COMPONENTS}
    for name in [name for name in sys.modules if name.startswith("emberge_fresh")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "small letters"),
        ("My-Bags", "did you mean 'my_bags'"),
        ("7bags", "did you mean 'bags'"),
        ("bags!", "did you mean 'bags'"),
        ("_bags", "did you mean 'bags'"),
        ("../bags", "did you mean 'bags'"),
        ("größe", "small letters"),
        ("lambda", "word of Python"),
        ("merge", "a plugin of emberge itself"),
        ("boom", "a plugin of emberge itself"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=why) as caught:
        write_plugin(name, tmp_path / "new")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_what_stands_already_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "emberge-bags").mkdir()
    (tmp_path / "emberge-bags" / "mine.txt").write_text("mine")
    with pytest.raises(RecipeError, match=r"emberge-bags .*another place"):
        write_plugin("bags", tmp_path / "emberge-bags")
    assert contents(tmp_path / "emberge-bags") == {"mine.txt": "mine"}


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match="bags cannot be written"):
        write_plugin("bags", tmp_path / "file" / "bags")


def test_what_a_test_run_leaves_in_the_example_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = tmp_path / "used"
    shutil.copytree(EXAMPLE, used)
    for left in (
        "emberge_acme/__pycache__/x.pyc",
        ".mypy_cache/x.json",
        "build/x.py",
        "a.egg-info/x",
    ):
        (used / left).parent.mkdir(parents=True, exist_ok=True)
        (used / left).write_bytes(b"\xff")
    monkeypatch.setattr(new_plugin, "_find_example", lambda: used)
    assert contents(write_plugin("acme", tmp_path / "new")) == contents(EXAMPLE)
