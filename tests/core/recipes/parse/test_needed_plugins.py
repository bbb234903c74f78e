"""`plugins:` of a recipe: files are code, which runs only if the user allows it; names must be installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from emberge import Plugins, RecipeError, load_plugins, parse_recipe
from emberge.cli.main import main

from tests.support.places import SUPPORT
from tests.support.reading import plugins

PLUGIN = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a plugin file that leaves a trace when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMBERGE_BLOCK", "*")
    (tmp_path / "mine.py").write_text((SUPPORT / "toy_plugin.py").read_text() + PLUGIN)
    recipe = "plugins: [mine.py]\nsteps:\n  a: {write: {word: A}}\n"
    (tmp_path / "r.yaml").write_text(recipe)
    return tmp_path


def refused(text: str, given: Plugins, path: Path | None = None) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, given, path=path)
    return [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize("verb", [["run", "r.yaml", "--out", "out"]])
def test_plugin_files_of_a_recipe_run_only_if_allowed(
    place: Path, verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(verb) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: r.yaml:1: the recipe needs the plugin file mine.py")
    assert "--allow-plugins" in line
    assert not (place / "ran").exists()
    assert not (place / "out").exists()


def test_allowed_plugin_files_add_their_components(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = set()
    for out, allowing in (("x", ["--allow-plugins"]), ("y", ["--plugin", "mine.py"])):
        assert main(["run", "r.yaml", "--out", out, *allowing]) == 0
        results.add((place / out / "a").resolve().name)
        assert (place / out / "a" / "config.json").is_file()
    assert len(results) == 1  # the same fingerprint


def test_plugin_files_are_found_relative_to_the_recipe(place: Path) -> None:
    (place / "inner").mkdir()
    shutil.move(place / "mine.py", place / "inner" / "mine.py")
    recipe = place / "inner" / "r.yaml"
    loaded = load_plugins()
    text = (place / "r.yaml").read_text()
    read = parse_recipe(text, loaded, path=recipe, allow_plugins=True)
    assert [step.id for step in read.steps] == ["a"]
    assert loaded.files == (place / "inner" / "mine.py",)


def test_plugins_are_needed_by_their_names_and_files_first(tmp_path: Path) -> None:
    text = "plugins: [acme, amce, other]\nsteps:\n  a: {fit: {model: ./m, data: d.jsonl}}\n"
    misspelt, missing = refused(text, plugins())
    assert "did you mean 'acme'" in misspelt
    assert "'other', which is not installed; install it" in missing
    assert parse_recipe(text.replace(", amce, other", ""), plugins()).steps
    text = "plugins: none.py\nsteps:\n  a: {unknown: {}}\n"
    (message,) = refused(text, plugins(), tmp_path / "r.yaml")
    assert message == "the recipe needs the plugin file none.py, which is missing"
