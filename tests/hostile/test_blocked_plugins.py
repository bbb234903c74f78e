"""Each plugin can be blocked alone: what does not need it works, and what does says which one is left out."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from emberge import EmbergeError, load_plugins
from emberge.cli.main import main
from emberge.plugins import Plugins
from emberge.recipes import list_shipped_recipes, load_recipe
from emberge.recipes.run.step_run import list_plugins_behind

PLUGINS = sorted(name for name, _ in load_plugins(block=()).manager.list_name_plugin())
RECIPES = {name: one.path for name, one in list_shipped_recipes().items()}
FILES = [*RECIPES["boom/demo"].parent.parent.rglob("*.py")]


@functools.cache
def without(plugin: str) -> Plugins:
    return load_plugins(FILES, block=(plugin,) if plugin else ())


@functools.cache
def needs(recipe: str) -> frozenset[str]:
    """The plugins that the components of a shipped recipe come from."""
    plugins = without("")
    steps = load_recipe(RECIPES[recipe], plugins).steps
    return frozenset(name for step in steps for name in list_plugins_behind(step.step, plugins))


@pytest.mark.slow
@pytest.mark.parametrize("plugin", PLUGINS)
def test_every_shipped_recipe_is_read_without_a_plugin_or_names_it(plugin: str) -> None:
    assert faults(plugin, list(RECIPES)) == []


def faults(plugin: str, names: list[str]) -> list[str]:
    """Recipes that fail without a word on the plugin, or read although they need it."""
    wrong = []
    for name in names:
        path = RECIPES[name]
        try:
            load_recipe(path, without(plugin))
            said = ""
        except EmbergeError as error:
            said = str(error)
        if (f"EMBERGE_BLOCK leaves out {plugin}" in said) != bool(said):
            wrong.append(f"{name}: {said}")
        if plugin in needs(name) and not said:
            wrong.append(f"{name}: reads, and needs it")
    return wrong


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plain_merge_needs_no_plugin_but_its_own(
    plugin: str,
    berts: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EMBERGE_BLOCK", plugin)
    words = ["merge", *map(str, berts[:2]), "--strategy", "linear", "--quiet", "--out"]
    code = main([*words, str(tmp_path / "out")])
    if plugin == "merge":
        assert code == 2
        assert "EMBERGE_BLOCK leaves out merge" in capsys.readouterr().err
    else:
        assert code == 0
        assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize("verb", sorted(without("").verbs))
def test_a_verb_needs_its_own_plugin_and_shows_its_help_without_any_other(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owners = [plugin for plugin in PLUGINS if verb not in without(plugin).verbs]
    assert len(owners) == 1
    monkeypatch.setenv("EMBERGE_BLOCK", owners[0])
    assert main([verb, "--out", "x"]) == 2
    assert f"there is no verb '{verb}'" in capsys.readouterr().err
