"""A recipe by its file or, when there is no such file, by the name that it is shipped under."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from emberge.errors import RecipeError, suggest
from emberge.plugins import Plugins
from emberge.recipes.docs.describe import shipped_recipes
from emberge.recipes.parse.parse import load_recipe
from emberge.recipes.recipe import Recipe

__all__ = ["named_recipe"]


def named_recipe(name: str, plugins: Plugins, overrides: Sequence[str]) -> Recipe:
    """The recipe that a command line names, with `--set` options laid over it.

    Raises:
        RecipeError: when there is none, or for every fault of it.
    """
    path = Path(name)
    if not path.is_file():
        shipped = shipped_recipes()
        if name not in shipped:
            raise RecipeError(_no_recipe(path, shipped))
        path = shipped[name].path
    return dataclasses.replace(load_recipe(path, plugins, overrides), overrides=tuple(overrides))


def _no_recipe(path: Path, shipped: Iterable[str]) -> str:
    if path.is_dir():
        return f"{path} is a folder; name the recipe file in it"
    beside = path.parent.glob("*.y*ml") if path.parent.is_dir() else ()
    hint = suggest(str(path), [*shipped, *map(str, beside)])
    return f"{path}: there is no such file, nor a shipped recipe of this name{hint}"
