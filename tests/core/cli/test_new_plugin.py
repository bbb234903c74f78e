"""A new plugin's repository is the shipped example under another name."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest
from emberge import RecipeError
from emberge.cli.new_plugin import write_plugin

from tests.support.places import ROOT

EXAMPLE = ROOT / "examples" / "third_party_plugin"


def contents(folder: Path) -> dict[str, str]:
    skipped = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "out")
    files = [f for f in folder.rglob("*") if f.is_file() and not set(skipped) & set(f.parts)]
    return {str(f.relative_to(folder)): f.read_text("utf-8") for f in files}


def test_a_new_plugin_is_like_the_example_under_its_own_name(tmp_path: Path) -> None:
    assert contents(write_plugin("acme", tmp_path / "new")) == contents(EXAMPLE)
    folder = write_plugin("my_bags", tmp_path / "src" / "bags")
    assert folder == tmp_path / "src" / "bags"
    files = contents(folder)
    assert not [name for name, text in files.items() if "acme" in (name + text).lower()]
    project = tomllib.loads(files["pyproject.toml"])
    assert project["project"]["name"] == "emberge-my-bags"
    assert project["project"]["entry-points"]["emberge"] == {"my_bags": "emberge_my_bags"}
    assert "emberge_my_bags/__init__.py" in files
    assert all(ast.parse(text) for name, text in files.items() if name.endswith(".py") and text)


@pytest.mark.parametrize(
    ("name", "why"),
    [("", "small letters"), ("My-Bags", "small letters"), ("lambda", "word of Python")],
)
def test_an_invalid_plugin_name_is_refused(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=why) as caught:
        write_plugin(name, tmp_path / "new")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_or_unwritable_folder_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "emberge-bags").mkdir()
    (tmp_path / "emberge-bags" / "mine.txt").write_text("mine")
    with pytest.raises(RecipeError, match=r"emberge-bags .*another place"):
        write_plugin("bags", tmp_path / "emberge-bags")
    assert contents(tmp_path / "emberge-bags") == {"mine.txt": "mine"}
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match="bags cannot be written"):
        write_plugin("bags", tmp_path / "file" / "bags")
