"""The recipes that come with emberge, and the reading of a recipe by its file or its shipped name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.errors import RecipeError, suggest
from emberge.plugins import Plugins
from emberge.recipes.parse.parse import load_recipe, parse_recipe
from emberge.recipes.recipe import Recipe


def named_recipe(
    name: str, plugins: Plugins, overrides: Sequence[str], *, allow_plugins: bool = False
) -> Recipe:
    """Return the recipe that a command line names, with its `--set` options applied.

    The plugin files of a shipped recipe come with emberge, and need no `allow_plugins`.

    Raises:
        RecipeError: if there is no such recipe, or it has problems; has all of them.
    """
    path = Path(name)
    if not path.is_file():
        shipped = shipped_recipes()
        if name not in shipped:
            raise RecipeError(_describe_missing_recipe(path, shipped))
        path, allow_plugins = shipped[name].path, True
    return load_recipe(path, plugins, overrides, allow_plugins=allow_plugins)


def to_recipe(
    recipe: Recipe | Mapping[str, Any] | str | os.PathLike[str], plugins: Plugins
) -> Recipe:
    """Return the recipe that Python code gives: as it is, else read from data, a file or a shipped name.

    Raises:
        RecipeError: if there is no such recipe, or it has problems; has all of them.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, Mapping):
        return parse_recipe(recipe, plugins)
    return named_recipe(os.fspath(recipe), plugins, ())


def _describe_missing_recipe(path: Path, shipped: Iterable[str]) -> str:
    if path.is_dir():
        return f"{path} is a folder; name the recipe file in it"
    sibling_paths = path.parent.glob("*.y*ml") if path.parent.is_dir() else ()
    hint = suggest(str(path), [*shipped, *map(str, sibling_paths)])
    return f"{path}: there is no such file, nor a shipped recipe of this name{hint}"


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe that comes with emberge: its file and its opening comment."""

    name: str
    path: Path
    description: str


def shipped_recipes() -> dict[str, ShippedRecipe]:
    """Return the recipes that come with emberge, by name (`boom/demo`)."""
    package = Path(__file__).parents[2]
    places = (package / "merge_recipes", package.parents[1] / "merge_recipes")
    folder = next((candidate for candidate in places if candidate.is_dir()), None)
    if folder is None:
        return {}
    # Recipes share catalogues of data, which are not recipes.
    paths = sorted(path for path in folder.rglob("*.yaml") if path.name != "datasets.yaml")
    names = [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
    return {
        name: ShippedRecipe(name, path, _read_opening_comment(path.read_text(encoding="utf-8")))
        for name, path in zip(names, paths, strict=True)
    }


def _read_opening_comment(text: str) -> str:
    """Return the comment at the beginning of a file."""
    lines: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines).strip()
